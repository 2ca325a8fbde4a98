"""Puts what the ranks said about a step side by side, and decides when a step is closed: pure.

A step closes when the watermark reaches it: when every rank that is expected has reported it or a later one.
It closes without the missing ranks when it has waited too long for them, in seconds or in steps. Steps close
in ascending order, each once. What comes for a closed step afterwards is late: counted, and left to the merge
from files; unless all its tags are new to that step, such as an evaluation's, which makes a supplement that
closes once every rank has gone on to a later step.

A newer incarnation of a rank makes everything void that its older ones said from its first step on, and with
fewer ranks than before also what the ranks said that are no longer there. Where that
step is already closed, the steps from there on are opened again and the first of them says so.

The order in which reports of a step arrive does not matter, except between two reports of the same rank and
tag: there the last one wins.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.step import StepMatrix
from aggregator.tag_table import TagTable
from rankside import window

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]

_NOWHERE = -1  # the last step of a rank that has reported none
_NEVER = -1  # the incarnation of a rank that has not joined yet
_BEYOND = np.iinfo(np.int64).max  # the watermark when nobody is expected any more


class Report(NamedTuple):
    """One rank's row: tag_ids of shape (T,), ascending and interned in the tag table, and columns (7, T)."""

    rank: int
    incarnation: int
    step: int
    tag_ids: Int64Array
    columns: Float64Array
    wall_time: float


class Admission(Enum):
    """What became of a report."""

    OPEN = "open"
    SUPPLEMENT = "supplement"
    LATE = "late"
    VOID = "void"


class Counts(NamedTuple):
    """What did not go the straight way.

    late: reports that came after their step had closed. void: reports of an incarnation that a newer one has
    replaced. repeated: reports that replaced an earlier one of the same rank, step and tag. incomplete: steps
    that closed without a rank that was expected. reopened: how often closed steps were opened again.
    """

    late: int = 0
    void: int = 0
    repeated: int = 0
    incomplete: int = 0
    reopened: int = 0


class _OpenStep:
    """The reports of one step so far; `first_seen` in seconds of the caller's clock."""

    def __init__(self, first_seen: float) -> None:
        self.first_seen = first_seen
        self.first: dict[int, Report] = {}
        self.further: list[Report] = []

    def add(self, report: Report) -> bool:
        """Take a report; return whether it replaces values of the same rank."""
        known = self.first.setdefault(report.rank, report)
        if known is report:
            return False
        self.further.append(report)
        return bool(np.isin(report.tag_ids, known.tag_ids).any())

    def hold_back(self) -> list[Report]:
        """Give up and return the further reports whose tags are in nobody's first one, such as evaluations."""
        if not self.further:
            return []
        firsts = np.concatenate([report.tag_ids for report in self.first.values()])
        held = [report for report in self.further if not np.isin(report.tag_ids, firsts).any()]
        self.further = [report for report in self.further if np.isin(report.tag_ids, firsts).any()]
        return held

    def forget(self, rank: int, before_incarnation: int) -> None:
        """Drop what older incarnations of the rank have said."""
        if rank not in self.first:
            return
        kept = [r for r in self.reports() if r.rank != rank or r.incarnation >= before_incarnation]
        self.first, self.further = {}, []
        for report in kept:
            self.add(report)

    def reports(self) -> list[Report]:
        """Return all reports in the order in which they came, rank by rank."""
        return [*self.first.values(), *self.further]


class Aligner:
    """Aligns the reports of all ranks on the step.

    world_size: how many ranks are expected, or None to learn it from the first that joins.
    max_wait_seconds: how long a step waits for missing ranks. max_lag_steps: how many later steps may be open.
    closed_until: the highest step that has closed, or -1. table: the run's tag table. void: by rank, the first and
    the last step of what it had written and is void since a smaller world lacked it, which its own files may not say;
    the last is None as long as it has not come back.
    """

    def __init__(
        self, *, world_size: int | None = None, max_wait_seconds: float = 30.0, max_lag_steps: int = 10_000
    ) -> None:
        self.table = TagTable()
        self.closed_until = _NOWHERE
        self.counts = Counts()
        self.void: dict[int, list[tuple[int, int | None]]] = {}
        self._max_wait_seconds = max_wait_seconds
        self._max_lag_steps = max_lag_steps
        self._last_step = np.full(world_size or 0, _NOWHERE, np.int64)
        self._first_step = np.full(world_size or 0, _BEYOND, np.int64)
        self._incarnation = np.full(world_size or 0, _NEVER, np.int64)
        self._joined = np.zeros(world_size or 0, np.bool_)
        self._restarted = np.zeros(world_size or 0, np.bool_)
        self._expected = np.ones(world_size or 0, np.bool_)
        self._open: dict[int, _OpenStep] = {}
        self._supplements: dict[int, _OpenStep] = {}
        self._closed_tags: dict[int, Int64Array] = {}
        self._session_start = False
        self._shrunk_to: int | None = None
        self._void_from = np.full(world_size or 0, _BEYOND, np.int64)

    @property
    def world_size(self) -> int:
        """How many ranks there are, as far as is known."""
        return len(self._last_step)

    @property
    def watermark(self) -> int:
        """The step up to which every expected rank has reported; -1 when there is none."""
        return int(self._last_step[self._expected].min(initial=_BEYOND))

    @property
    def missing(self) -> Int64Array:
        """The expected ranks that hold the watermark back behind the newest open step."""
        newest = max(self._open, default=_NOWHERE)
        return np.flatnonzero(self._expected & (self._last_step < newest))

    def join(self, rank: int, incarnation: int, *, world_size: int) -> bool:
        """Expect reports of this rank; False where a newer incarnation of it is known already."""
        self._resize(max(world_size, rank + 1))
        if incarnation < self._incarnation[rank]:
            return False
        if incarnation > self._incarnation[rank]:
            if world_size < self.world_size:
                self._expected[world_size:] = False  # restarted with fewer ranks
                self._shrunk_to = world_size
            self._void_from[rank] = _BEYOND
            self._restarted[rank] = self._incarnation[rank] != _NEVER
            self._incarnation[rank] = incarnation
            self._last_step[rank] = _NOWHERE
            self._first_step[rank] = _BEYOND
        self._joined[rank] = self._expected[rank] = True
        return True

    def resume(self, closed_until: int, incarnations: Mapping[int, int]) -> None:
        """Go on where an earlier aligner of the run stood: its last closed step, and the ranks it knew."""
        self.closed_until = closed_until
        self._resize(max(incarnations, default=-1) + 1)
        for rank, incarnation in incarnations.items():
            self._incarnation[rank] = incarnation

    def leave(self, rank: int, incarnation: int) -> None:
        """Wait no longer for this rank, unless a newer incarnation of it has joined."""
        if rank < self.world_size and self._incarnation[rank] == incarnation:
            self._expected[rank] = False

    def add(self, report: Report, *, now: float) -> Admission:
        """Take one rank's report. The rank must have joined. now: seconds of the caller's clock."""
        rank, step = report.rank, report.step
        if report.incarnation != self._incarnation[rank] or step >= self._void_from[rank]:
            self._count(void=1)
            return Admission.VOID
        if step < self._first_step[rank]:
            self._begin(report)
        self._last_step[rank] = max(self._last_step[rank], step)
        target, admission = self._open, Admission.OPEN
        if step <= self.closed_until:
            closed_tags = self._closed_tags.get(step)
            if closed_tags is None or np.isin(report.tag_ids, closed_tags).any():
                self._count(late=1)
                return Admission.LATE
            target, admission = self._supplements, Admission.SUPPLEMENT
        open_step = target.get(step)
        if open_step is None:
            open_step = target[step] = _OpenStep(now)
        if open_step.add(report):
            self._count(repeated=1)
        elif open_step.first[rank] is not report:
            admission = Admission.SUPPLEMENT  # it may be held back until its step is over
        return admission

    def close(self, *, now: float) -> list[StepMatrix]:
        """Return the steps that have closed by now: supplements of earlier steps first, each ascending."""
        watermark = self.watermark
        due = sorted(s for s, step in self._supplements.items() if s < watermark or self._overdue(step, now))
        closed = [self._matrix(step, self._supplements.pop(step)) for step in due]
        if not self._open:
            return closed
        steps = sorted(self._open)
        overdue = steps[: -self._max_lag_steps]
        overdue += [step for step in steps if self._overdue(self._open[step], now)]
        if overdue:
            self._expected &= self._joined  # who never came is not waited for again
        limit = max([watermark, *overdue])
        for step in steps[: bisect_right(steps, limit)]:
            reports = self._open.pop(step)
            if step >= watermark and (held := reports.hold_back()):
                # The other ranks have yet to say this of the step: it waits for them as a supplement.
                supplement = self._supplements.setdefault(step, _OpenStep(now))
                for report in held:
                    supplement.add(report)
            matrix = self._matrix(step, reports)
            if step > watermark:
                self._count(incomplete=1)
            self._remember(step, matrix.tag_ids)
            closed.append(matrix._replace(session_start=self._session_start))
            self._session_start = False
        return closed

    def finish(self) -> list[StepMatrix]:
        """Return all steps that are still open, ascending; nobody is waited for any more."""
        self._expected[:] = False
        return self.close(now=0.0)

    def _overdue(self, step: _OpenStep, now: float) -> bool:
        return now - step.first_seen >= self._max_wait_seconds

    def _begin(self, report: Report) -> None:
        """Make void what older incarnations of the rank said from the first step of this one on."""
        first = _first_step(report)
        self._first_step[report.rank] = first
        self._end_void(report.rank, first)
        self._forget(report.rank, first, before_incarnation=report.incarnation)
        if self._shrunk_to is not None:
            for vanished in range(self._shrunk_to, self.world_size):
                self._forget(vanished, first, before_incarnation=_BEYOND)
                self._end_void(vanished, first)
                self.void.setdefault(vanished, []).append((first, None))
            self._void_from[self._shrunk_to :] = np.minimum(self._void_from[self._shrunk_to :], first)
            self._shrunk_to = None
        self._open = {step: reports for step, reports in self._open.items() if reports.first}
        self._supplements = {step: reports for step, reports in self._supplements.items() if reports.first}
        if first <= self.closed_until and self._restarted[report.rank]:
            self.closed_until = first - 1
            self._session_start = True
            self._closed_tags = {s: ids for s, ids in self._closed_tags.items() if s < first}
            # Whoever has not restarted yet is waited for again: it restarts as well, or reports on and so shows
            # that it did not.
            self._last_step = np.minimum(self._last_step, first - 1)
            self._count(reopened=1)

    def _forget(self, rank: int, first_step: int, *, before_incarnation: int) -> None:
        for step, reports in [*self._open.items(), *self._supplements.items()]:
            if step >= first_step:
                reports.forget(rank, before_incarnation)

    def _end_void(self, rank: int, step: int) -> None:
        """Cut what is void of a rank to what lies before this step, from which on it is told anew."""
        if rank in self.void:
            self.void[rank] = [
                (first, step - 1 if last is None else min(last, step - 1))
                for first, last in self.void[rank]
                if first < step
            ]

    def _remember(self, step: int, tag_ids: Int64Array) -> None:
        self.closed_until = step
        self._closed_tags[step] = tag_ids
        while len(self._closed_tags) > self._max_lag_steps:
            del self._closed_tags[next(iter(self._closed_tags))]

    def _matrix(self, step: int, reports: _OpenStep) -> StepMatrix:
        groups: dict[int, list[Report]] = {}
        for report in reports.first.values():
            groups.setdefault(id(report.tag_ids), []).append(report)
        parts = [*groups.values(), *([report] for report in reports.further)]
        tag_ids = parts[0][0].tag_ids
        if len(parts) > 1:
            tag_ids = self.table.intern(np.unique(np.concatenate([part[0].tag_ids for part in parts])))
        columns = window.absent((self.world_size, len(tag_ids)))
        for part in parts:
            ranks = np.array([report.rank for report in part])
            places = np.searchsorted(tag_ids, part[0].tag_ids)
            rows = np.concatenate([report.columns for report in part]).reshape(
                len(part), window.N_COLUMNS, -1
            )
            rows = rows.swapaxes(0, 1)
            columns[:, ranks[:, np.newaxis], places] = np.where(
                rows[window.Column.COUNT] + rows[window.Column.NONFINITE] > 0,
                rows,
                columns[:, ranks[:, np.newaxis], places],
            )
        reported = np.any(columns[window.Column.COUNT] + columns[window.Column.NONFINITE] > 0, axis=0)
        if not reported.all():
            tag_ids, columns = self.table.intern(tag_ids[reported]), columns[:, :, reported]
        wall_time = float(np.median([report.wall_time for report in reports.first.values()]))
        return StepMatrix(step, self.table.tags, tag_ids, columns, wall_time)

    def _resize(self, world_size: int) -> None:
        more = world_size - self.world_size
        if more > 0:
            self._last_step = np.append(self._last_step, np.full(more, _NOWHERE, np.int64))
            self._first_step = np.append(self._first_step, np.full(more, _BEYOND, np.int64))
            self._void_from = np.append(self._void_from, np.full(more, _BEYOND, np.int64))
            self._incarnation = np.append(self._incarnation, np.full(more, _NEVER, np.int64))
            self._joined = np.append(self._joined, np.zeros(more, np.bool_))
            self._restarted = np.append(self._restarted, np.zeros(more, np.bool_))
            self._expected = np.append(self._expected, np.ones(more, np.bool_))

    def _count(self, **more: int) -> None:
        self.counts = self.counts._replace(
            **{name: getattr(self.counts, name) + n for name, n in more.items()}
        )


def _first_step(report: Report) -> int:
    """Return the first step that the report is about: it may end a window of several."""
    values = report.columns[window.Column.COUNT] + report.columns[window.Column.NONFINITE]
    return max(0, report.step + 1 - int(values.max(initial=1)))
