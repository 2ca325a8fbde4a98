"""Finds ranks whose own time is chronically above their peers'.

Judged is the level, not its change: a card that was slow from the start is slow. A step's excess is bounded,
so that one long pause is not chronic. When the slow rank changes all the time, that is one finding, called
rotating.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect.batches import BATCH_STEPS, BATCHES, Batches, Row
from aggregator.detect.finding import CHRONIC, CLOSED, OPEN, ROTATING, Finding, finding_id
from aggregator.detect.reference import leave_one_out
from aggregator.detect.turns import find_turns
from aggregator.detect.words import name_ranks, number
from rankside.tags import TagKind
from rankside.window import Column

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.peers import Grouping, PeerGroups
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]
    BoolArray = npt.NDArray[np.bool_]

# The threshold is raised by the part that this is of the batches from which the noise is known.
_WIDENING = 6.0
_ITERATION = "iteration-time"
_ADVICE = {
    "data-time": "look at its data loader and its storage",
    "host-time": "look at its callbacks and its host",
}


@dataclass(slots=True)
class _Fault:
    ranks: tuple[int, ...]
    index: int
    tag: str
    first_step: int
    persistence: str
    score: float
    evidence: dict[str, object]
    message: str
    last_step: int


class SlowDetector:
    """Compares batches of steps; every eighth step is a moment of decision."""

    def __init__(self, settings: DetectionSettings, groups: PeerGroups) -> None:
        self._settings = settings
        self._groups = groups
        self._faults: list[_Fault] = []
        self._forget()

    def _forget(self) -> None:
        self._faults = []
        self._batches = Batches()
        self._began: deque[int] = deque(maxlen=BATCHES)  # the first step of each batch
        self._iteration: list[float] = []
        self._iteration_ms = 0.0

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:
        """Take one closed step; return the findings that it opens or closes."""
        if matrix.session_start:
            self._forget()
        tags = [matrix.tags[index] for index in matrix.tag_ids]
        for column, tag in enumerate(tags):
            if tag.name == _ITERATION:
                self._iteration = [*self._iteration[-BATCH_STEPS * BATCHES :], float(merged.mean[column])]
        if self._batches.steps % BATCH_STEPS == 0 or not self._iteration_ms:
            finite = [value for value in self._iteration if np.isfinite(value)]
            self._iteration_ms = float(np.median(finite)) if finite else 0.0
        judged = np.array([tag.kind is TagKind.TIMING for tag in tags], dtype=np.bool_)
        if not judged.any():
            return ()
        ids = matrix.tag_ids[judged]
        values = matrix.columns[Column.MEAN][:, judged]
        grouping = self._groups.local(len(values))
        if self._batches.steps % BATCH_STEPS == 0:
            self._began.append(matrix.step)
        self._batches.add(values, ids, grouping, iteration_ms=self._iteration_ms)
        if self._batches.steps % BATCH_STEPS:
            return ()
        return tuple(self._decide(matrix, ids, grouping))

    def _decide(self, matrix: StepMatrix, ids: Int64Array, grouping: Grouping) -> list[Finding]:
        kept = self._batches.kept(ids)
        seen, time = kept[Row.SEEN], kept[Row.PEERS]
        batches = seen.sum(axis=0)
        several = np.maximum(batches, 1)
        mean = kept[Row.EXCESS].sum(axis=0) / several
        variance, learnt = self._batches.long_run_variance(ids, grouping), self._batches.learnt(ids)
        known = batches > 0
        others = grouping.scatter(np.broadcast_to(_count(grouping, known), grouping.gather(mean).shape)) - 1
        own = np.sqrt(variance / several)
        # Averaged over all batches the order of the healthy ranks no longer matters, as it does in a single step, where
        # one fast rank of four would make the others' middle too low.
        centre = leave_one_out(grouping.gather(np.where(known, mean, np.nan)), grouping.gather(own))
        mean = np.nan_to_num(mean - grouping.scatter(centre))
        # The centre of a few others has noise of its own; of one other, as much again, seen from half-way between them.
        error = own * np.sqrt(np.where(others > 1, 1 + 2 / np.maximum(others, 1), 4.0))
        milliseconds = mean * time.sum(axis=0) / several
        enough = np.maximum(
            self._settings.slow_floor_ms, self._settings.slow_iteration_fraction * self._iteration_ms
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where(error > 0, mean / error, np.where(mean > 0, np.inf, 0.0))
        slow = (
            (batches * BATCH_STEPS >= self._settings.slow_steps)
            & (mean >= self._settings.slow_fraction)
            & (milliseconds >= enough)
            & (score >= self._settings.slow_sigma * (1 + _WIDENING / np.maximum(learnt, 1)))
        )
        findings = self._follow(matrix, ids, kept[Row.LEAD], mean, milliseconds)
        # Times contain each other: the one that is up most is nearest to the cause, and one is enough.
        for rank, column in sorted(np.argwhere(slow).tolist(), key=lambda place: -mean[place[0], place[1]]):
            index = int(ids[column])
            if not any(rank in fault.ranks for fault in self._faults):
                slow_for = _slow_batches(kept[Row.EXCESS, :, rank, column], float(mean[rank, column]))
                shown = kept[:, :slow_for, rank, column]
                shown = shown[:, shown[Row.SEEN] > 0]
                own_ms, peers_ms = float(np.median(shown[Row.OWN])), float(np.median(shown[Row.PEERS]))
                numbers = {
                    "excess_fraction": float(mean[rank, column]),
                    "excess_ms": float(np.median(shown[Row.OWN] - shown[Row.PEERS])),
                    "own_ms": own_ms,
                    "peers_ms": peers_ms,
                }
                findings.append(
                    self._take(
                        matrix,
                        rank,
                        index,
                        since=self._began[-slow_for],
                        score=float(min(score[rank, column], 1e6)),
                        numbers=numbers,
                    )
                )
        if not self._faults and len(seen) == BATCHES:
            findings += self._rotating(matrix, ids[~slow.any(axis=0)], float(enough))
        return findings

    def _take(
        self,
        matrix: StepMatrix,
        rank: int,
        index: int,
        *,
        since: int,
        score: float,
        numbers: dict[str, float],
    ) -> Finding:
        tag = matrix.tags[index].name
        advice = f"; {_ADVICE[tag]}" if tag in _ADVICE else ""
        fault = _Fault(
            (rank,),
            index,
            tag,
            since,
            CHRONIC,
            score,
            {"unit": "standard errors", **numbers},
            f"rank {rank}: {tag} is {number(numbers['own_ms'])} ms against the peers' "
            f"{number(numbers['peers_ms'])} ms since step {since}: every step waits "
            f"{number(numbers['excess_ms'])} ms for it{advice}",
            matrix.step,
        )
        self._faults.append(fault)
        return _finding(fault, matrix.step, OPEN)

    def _rotating(self, matrix: StepMatrix, ids: Int64Array, enough: float) -> list[Finding]:
        """Open a finding for the first of these tags of which the ranks take turns in being slow."""
        for index in ids.tolist():
            turns = find_turns(self._batches.kept(np.array([index]))[..., 0], enough, self._settings)
            if turns is None:
                continue
            since = self._began[0]
            tag, ranks = matrix.tags[index].name, tuple(turns.ranks)
            fault = _Fault(
                ranks,
                index,
                tag,
                since,
                ROTATING,
                turns.lead,
                {
                    "unit": "fraction of the peers' time",
                    "turns": dict(zip(map(str, ranks), turns.counts, strict=True)),
                },
                f"{name_ranks(ranks)}: take turns in being slow since step {since}: {tag} of one of them is "
                f"{100 * turns.lead:.0f} % above the peers at any time; look for something they share "
                "(storage, a node, garbage collection) rather than for a bad card",
                matrix.step,
            )
            self._faults.append(fault)
            return [_finding(fault, matrix.step, OPEN)]
        return []

    def _follow(
        self,
        matrix: StepMatrix,
        ids: Int64Array,
        lead: Float64Array,
        mean: Float64Array,
        milliseconds: Float64Array,
    ) -> list[Finding]:
        findings = []
        for fault in list(self._faults):
            column = np.flatnonzero(ids == fault.index)
            if not len(column):
                continue
            still = bool((mean[list(fault.ranks), column[0]] >= 0.5 * self._settings.slow_fraction).any())
            still = still and bool(
                (milliseconds[list(fault.ranks), column[0]] >= 0.5 * self._settings.slow_floor_ms).any()
            )
            if fault.persistence == ROTATING:
                leading = lead[:, list(fault.ranks), column[0]].max(axis=1) >= self._settings.turns_lead
                still = bool(leading.mean() > 0.5)
            if still:
                fault.last_step = matrix.step
            elif matrix.step - fault.last_step >= self._settings.quiet_steps:
                self._faults.remove(fault)
                findings.append(_finding(fault, matrix.step, CLOSED))
        return findings


def _finding(fault: _Fault, step: int, status: str) -> Finding:
    message = fault.message
    if status == CLOSED:
        message = f"{name_ranks(fault.ranks)}: {fault.tag} is as short as its peers' again"
    return Finding(
        kind="slow",
        ranks=fault.ranks,
        tag=fault.tag,
        first_step=fault.first_step,
        step=step,
        persistence=fault.persistence,
        score=fault.score,
        evidence=dict(fault.evidence),
        message=message,
        status=status,
        id=finding_id("slow", fault.tag, fault.first_step, fault.ranks),
    )


def _slow_batches(excess: Float64Array, mean: float) -> int:
    """Return the length of the rank's run of slow batches, newest first, as far back as is known.

    Where the sum of what is above half of the usual excess is largest, the change is most likely.
    """
    return int(np.argmax(np.cumsum(excess - 0.5 * mean))) + 1


def _count(grouping: Grouping, known: BoolArray) -> Float64Array:
    """Return how many ranks of each group are known, shape (G, 1, T)."""
    counted: Float64Array = np.nansum(grouping.gather(known.astype(np.float64)), axis=1, keepdims=True)
    return counted
