"""Gathers what is logged for a step into reports: one row of numbers a step, or a window of steps.

Pure: no thread, file or socket. Values are rounded to float32 here, once, because that is what TensorBoard's
scalars hold: the rank's own file, the live merge and the merge from files then stand on the same numbers.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankside import window
from rankside.tags import Tag, well_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from rankside.schedule import Schedule


class Report(NamedTuple):
    """What one rank says about one window, which ends at `step`.

    tag_ids: shape (T,), int64, ascending indices into the gatherer's tag table.
    columns: shape (7, T), float64, ordered as `rankside.window.Column`. wall_time: seconds since the epoch.
    """

    step: int
    tag_ids: npt.NDArray[np.int64]
    columns: npt.NDArray[np.float64]
    wall_time: float


class Gatherer:
    """Turns logged values into reports.

    A step is complete when a later one begins or when `settle` says that nothing more is coming. What is
    logged for a step after its report makes a further report of that step.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.tags: list[Tag] = []
        self._schedule = schedule
        self._ids: dict[str, int] = {}
        self._layouts: dict[tuple[str, ...], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
        self._declared: dict[str, Tag] = {}
        self._step = -1
        self._values: dict[str, float] = {}
        self._wall_time = 0.0
        self._previous = -1
        self._window: Report | None = None

    def describe(self, tag: Tag) -> None:
        """Declare a tag; it counts from the first value of that name on."""
        self._declared[tag.name] = tag

    def add(self, step: int, values: Mapping[str, float], wall_time: float) -> list[Report]:
        """Take values of a step; return the reports that are now complete."""
        reports = self.settle() if step != self._step else []
        self._step = step
        self._wall_time = wall_time
        self._values.update(values)
        return reports

    def settle(self) -> list[Report]:
        """Take the step at hand as complete; return its report when it ends a window."""
        if not self._values:
            return []
        values, self._values = self._values, {}
        report = self._reduce(self._step, values, self._wall_time)
        if self._step <= self._previous and self._window is None:
            return [report]  # its window is out already
        ends = self._schedule.ends_window(report.step, self._previous)
        self._previous = max(self._previous, report.step)
        self._window = report if self._window is None else self._join(self._window, report)
        return self._take_window() if ends else []

    def finish(self) -> list[Report]:
        """Return what is left, a window that did not reach its end included."""
        return self.settle() + self._take_window()

    def begin(self, initial_step: int) -> list[Report]:
        """Begin again after this step, which may lie before what was gathered; return what is left from before."""
        reports = self.finish()
        self._step = self._previous = initial_step if initial_step > 0 else -1
        return reports

    def single(self, step: int, values: Mapping[str, float], wall_time: float) -> Report:
        """Return a report of its own for these values, whatever the schedule says."""
        return self._reduce(step, values, wall_time)

    def _take_window(self) -> list[Report]:
        reports = [] if self._window is None else [self._window]
        self._window = None
        return reports

    def _reduce(self, step: int, values: Mapping[str, float], wall_time: float) -> Report:
        names = tuple(values)
        ids, order = self._layouts.get(names) or self._layout(names)
        # numpy's cast would warn where float32 overflows, and silencing it costs more than the cast.
        rounded = np.array(array("f", values.values()), np.float64)
        return Report(step, ids, window.single(rounded[order]), wall_time)

    def _layout(self, names: tuple[str, ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        for name in names:
            if name not in self._ids:
                self._ids[name] = len(self.tags)
                self.tags.append(self._declared.get(name) or well_known(name))
        ids = np.array([self._ids[name] for name in names], np.int64)
        order = np.argsort(ids)
        self._layouts[names] = ids[order], order
        return self._layouts[names]

    @staticmethod
    def _join(older: Report, newer: Report) -> Report:
        if older.tag_ids is not newer.tag_ids:
            ids = np.union1d(older.tag_ids, newer.tag_ids)
            older, newer = (_spread(report, ids) for report in (older, newer))
        return Report(
            newer.step, newer.tag_ids, window.combine(older.columns, newer.columns), newer.wall_time
        )


def _spread(report: Report, ids: npt.NDArray[np.int64]) -> Report:
    columns = window.absent((len(ids),))
    columns[:, np.searchsorted(ids, report.tag_ids)] = report.columns
    return report._replace(tag_ids=ids, columns=columns)
