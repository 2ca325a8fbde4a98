"""Keeps what an earlier merge holds and the rank files do not: values that a full disk kept from a rank's own file.

Of two points the one that stands on more ranks counts, whole: statistics of different ranks are never mixed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from aggregator.sinks.sink import ClosedStep
from aggregator.step import MergedStep, StepMatrix
from rankside.eventreader import read_scalars
from rankside.tags import well_known
from rankside.window import absent

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

    from aggregator.sinks.sink import Sink
    from aggregator.tag_table import TagTable

    Float64Array = npt.NDArray[np.float64]

# The fields of a merged step in their order, by their name in the merged run; std stands in a run of its own only.
_NAMES = ("mean", "std", "min", "max", "ranks_seen", "nonfinite", "rank_of_min", "rank_of_max")
_RANKS_SEEN = _NAMES.index("ranks_seen")


class EarlierMerge:
    """A sink in front of another one, which gets each point from wherever it stands on more ranks.

    merged: folder of the earlier merged runs, which is read at once. table: the tag table of the steps that come. The
    steps of each tag stay ascending.
    """

    def __init__(self, merged: Path, sink: Sink, *, table: TagTable) -> None:
        self._sink = sink
        self._table = table
        self._points = _read(merged)
        self._wall_time = 0.0

    def write(self, closed: ClosedStep) -> None:
        """Take one closed step, after all earlier points of its tags that the files do not have."""
        step = closed.matrix.step
        self._wall_time = closed.matrix.wall_time
        names = [closed.matrix.tags[i].name for i in closed.matrix.tag_ids]
        self._write_earlier(names, before=step)
        numbers = np.array(closed.merged, np.float64)
        for i, name in enumerate(names):
            points = self._points.get(name)
            if points and points[0][0] == step:
                _, earlier = points.popleft()
                if earlier[_RANKS_SEEN] > numbers[_RANKS_SEEN, i]:
                    numbers[:, i] = earlier
        self._sink.write(closed._replace(merged=MergedStep(*numbers)))

    def flush(self) -> None:
        """Flush the other sink."""
        self._sink.flush()

    def close(self) -> None:
        """Hand on what is left, and close the other sink."""
        self._write_earlier(self._points, before=np.inf)
        self._sink.close()

    def _write_earlier(self, names: Iterable[str], *, before: float) -> None:
        missing: dict[int, dict[str, Float64Array]] = {}
        for name in names:
            points = self._points.get(name)
            while points and points[0][0] < before:
                step, numbers = points.popleft()
                missing.setdefault(step, {})[name] = numbers
        for step, of_step in sorted(missing.items()):
            tag_ids = self._table.add(map(well_known, of_step))
            matrix = StepMatrix(step, self._table.tags, tag_ids, absent((0, len(tag_ids))), self._wall_time)
            merged = MergedStep(*np.stack([*of_step.values()], axis=1))
            self._sink.write(ClosedStep(matrix, merged, ()))


def _read(merged: Path) -> dict[str, deque[tuple[int, Float64Array]]]:
    """Return the points of each tag, ascending: step, and its numbers in the order of `_NAMES`."""
    shown = read_scalars(merged)
    points = {}
    for tag, std in read_scalars(merged / "std").items():
        series = [std if name == "std" else shown.get(f"{tag}/{name}") for name in _NAMES]
        if all(one is not None and np.array_equal(one.steps, std.steps) for one in series):
            numbers = np.stack([one.values for one in series if one is not None], axis=1)
            points[tag] = deque(zip(std.steps.tolist(), numbers, strict=True))
    return points
