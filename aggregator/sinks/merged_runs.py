"""Writes the merged curves as TensorBoard runs.

    merged/mean  merged/min  merged/max  merged/std   the ranks' own tags, so that they overlay in one chart
    merged/      <tag>/mean, <tag>/min, <tag>/max      for the band charts of the custom scalars page
                 <tag>/ranks_seen, <tag>/nonfinite     on how many ranks the point stands; NaN and infinite values
                 <tag>/rank_of_min, <tag>/rank_of_max  who holds the extremes; -1 where no value was finite
                 findings/<kind>                       findings as text cards
                 gradient-noise-scale                  what follows from all ranks together

A tag without a finite value at a step has NaN there. Each flush leaves whole records in all five folders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aggregator.sinks.band_charts import layout_value
from aggregator.sinks.finding_card import card
from rankside.eventfile import EventFileWriter
from rankside.summary import text_value
from rankside.tags import Tag

if TYPE_CHECKING:
    from pathlib import Path

    from aggregator.detect.finding import Finding
    from aggregator.sinks.sink import ClosedStep

STATISTICS = ("mean", "min", "max", "std")
_HONEST = (
    ("mean", "mean over the ranks' finite values"),
    ("min", "lowest finite value of any rank"),
    ("max", "highest finite value of any rank"),
    ("ranks_seen", "ranks that reported the tag"),
    ("nonfinite", "values that were NaN or infinite"),
    ("rank_of_min", "lowest rank that holds the minimum"),
    ("rank_of_max", "lowest rank that holds the maximum"),
)


class MergedRuns:
    """The event files below one `merged` folder. Raises OSError where a folder cannot be made.

    session_start: the step from which on everything is written that counts, or None where nothing was written
    before. A TensorBoard that is open on the folder then drops what it had from there on.
    """

    def __init__(self, folder: Path, *, session_start: int | None = None) -> None:
        self._writers = {name: EventFileWriter(folder / name) for name in STATISTICS}
        self._honest = EventFileWriter(folder)
        self._layouts: dict[bytes, tuple[tuple[Tag, ...], tuple[Tag, ...]]] = {}
        self._charted: list[str] = []
        if session_start is not None:
            self._write_session_start(session_start)

    def write(self, closed: ClosedStep) -> None:
        """Write one step to all folders."""
        matrix, merged = closed.matrix, closed.merged
        step, wall_time = matrix.step, matrix.wall_time
        if matrix.session_start:
            self._write_session_start(step)
        tags, honest_tags = self._tags(closed)
        curves = (merged.mean, merged.minimum, merged.maximum, merged.std)
        for name, values in zip(STATISTICS, curves, strict=True):
            self._writers[name].write_scalars(step, tags, values, wall_time=wall_time)
        honest = np.stack(
            [
                merged.mean,
                merged.minimum,
                merged.maximum,
                merged.ranks_seen,
                merged.nonfinite,
                merged.rank_of_min,
                merged.rank_of_max,
            ],
            axis=1,
        )
        self._honest.write_scalars(step, honest_tags, honest.ravel(), wall_time=wall_time)
        if closed.derived:
            names, numbers = zip(*closed.derived, strict=True)
            self._honest.write_scalars(step, names, numbers, wall_time=wall_time)

    def announce(self, finding: Finding) -> None:
        """Write a finding as a text card."""
        self._honest.write_summary(finding.step, [text_value(f"findings/{finding.kind}", card(finding))])

    def flush(self) -> None:
        """Hand everything to the operating system.

        Raises OSError where it does not take all, and from then on where a step no longer fitted in memory while
        it took none: what is missing must not be acknowledged.
        """
        writers = (*self._writers.values(), self._honest)
        for writer in writers:
            writer.flush()
        if lost := sum(writer.lost_events for writer in writers):
            raise OSError(f"{lost} events were dropped while the disk was full")

    def close(self) -> None:
        """Flush and close all files."""
        for writer in (*self._writers.values(), self._honest):
            writer.close()

    def _write_session_start(self, step: int) -> None:
        for writer in (*self._writers.values(), self._honest):
            writer.write_session_start(step)

    def _tags(self, closed: ClosedStep) -> tuple[tuple[Tag, ...], tuple[Tag, ...]]:
        """Return the step's tags, and those of the honest numbers tag by tag."""
        key = closed.matrix.tag_ids.tobytes()
        if key not in self._layouts:
            tags = tuple(closed.matrix.tags[i] for i in closed.matrix.tag_ids)
            honest = tuple(
                Tag(f"{tag.name}/{name}", description=text) for tag in tags for name, text in _HONEST
            )
            self._layouts[key] = tags, honest
            new = [tag.name for tag in tags if tag.name not in self._charted]
            if new:
                self._charted += new
                self._honest.write_summary(closed.matrix.step, [layout_value(self._charted)])
        return self._layouts[key]
