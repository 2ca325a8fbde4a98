"""What one rank's event files say in the end: its reports by step, after every restart.

A session start at step s makes void what was said before of s and later steps. A step that was reported again
keeps both reports in their order, so that the last one wins tag by tag, as it does live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.align import Report
from rankside.eventreader import read_reports
from rankside.tags import well_known
from rankside.window import Column, single

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from aggregator.tag_table import TagTable
    from rankside.eventreader import OnDamage
    from rankside.eventreader import Report as FileReport
    from rankside.tags import Tag

    Int64Array = npt.NDArray[np.int64]

_INCARNATION = 0  # restarts are resolved here already


class _Kept(NamedTuple):
    """One report. numbers: float32 of shape (T,) where each tag has one value, else float64 columns (7, T)."""

    tag_ids: Int64Array
    numbers: npt.NDArray[np.float32] | npt.NDArray[np.float64]
    wall_time: float


class RankHistory:
    """The surviving reports of one rank.

    declared: tags that are known better than by their name. void: what is void of this rank though its files do
    not say so, as the aligner has it. Raises what `read_reports` raises.
    """

    def __init__(
        self,
        rank: int,
        folder: Path,
        *,
        table: TagTable,
        declared: Mapping[str, Tag],
        void: Sequence[tuple[int, int | None]],
        on_damage: OnDamage | None = None,
    ) -> None:
        self.rank = rank
        self._steps: dict[int, list[_Kept]] = {}
        self._newest = -1
        layouts: dict[tuple[str, ...], tuple[Int64Array, Int64Array]] = {}
        for report in read_reports(folder, on_damage=on_damage):
            if report.session_start:
                self._forget_from(report.step)
                continue
            if report.tags not in layouts:
                ids = table.add([declared.get(name) or well_known(name) for name in report.tags])
                order = np.argsort(ids)
                layouts[report.tags] = table.intern(ids[order]), order
            ids, order = layouts[report.tags]
            kept = _Kept(ids, _compact(report)[..., order], report.wall_time)
            self._steps.setdefault(report.step, []).append(kept)
            self._newest = max(self._newest, report.step)
        for first, last in void:
            self._steps = {
                step: kept
                for step, kept in self._steps.items()
                if step < first or (last is not None and step > last)
            }

    @property
    def steps(self) -> list[int]:
        """The steps that the rank reported, ascending."""
        return sorted(self._steps)

    def take(self, step: int) -> Iterator[Report]:
        """Yield the reports of a step in their order, and forget them."""
        for ids, numbers, wall_time in self._steps.pop(step, ()):
            columns = single(numbers.astype(np.float64)) if numbers.ndim == 1 else numbers
            yield Report(
                self.rank, _INCARNATION, step, ids, columns.astype(np.float64, copy=False), wall_time
            )

    def _forget_from(self, step: int) -> None:
        if step <= self._newest:
            self._steps = {s: kept for s, kept in self._steps.items() if s < step}
            self._newest = max(self._steps, default=-1)


def _compact(report: FileReport) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    columns = report.columns
    if np.all(columns[Column.COUNT] + columns[Column.NONFINITE] == 1):
        with np.errstate(over="ignore"):
            values: npt.NDArray[np.float32] = columns[Column.LAST].astype(np.float32)
        return values
    return columns
