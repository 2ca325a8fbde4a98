"""Finds ranks whose own time is chronically above their peers'.

Judged is the level, not its change: a card that was slow from the start is slow. A step's excess is bounded,
so that one long pause is not chronic. When the slow rank changes all the time, that is one finding, called
rotating.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect.finding import CHRONIC, CLOSED, OPEN, ROTATING, Finding, finding_id
from aggregator.detect.reference import MAD_TO_SIGMA, median, median_of_others
from aggregator.detect.whiten import grown
from aggregator.detect.words import name_ranks, number
from rankside.tags import TagKind
from rankside.window import Column

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.history import History
    from aggregator.detect.peers import Grouping, PeerGroups
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]
    BoolArray = npt.NDArray[np.bool_]

_BATCH_STEPS = 8
_BATCHES = 20
_BATCHES_NEEDED = 12
# The excess of one step counts up to the peers' own time, or to this part of a whole step where that is more:
# of peers that need next to nothing, many times as much may still be little.
_EXCESS_BOUND = 1.0
_LARGEST_DEPENDENCE = 0.9
_EXCESS_BOUND_OF_ITERATION = 0.1
_ITERATION = "iteration-time"
_ADVICE = {
    "data-time": "look at its data loader and its storage",
    "host-time": "look at its callbacks and its host",
}
# A rank rotates in when it leads a batch by this much of its peers' time.
_LEAD_FRACTION = 0.3


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

    def __init__(self, settings: DetectionSettings, groups: PeerGroups, history: History) -> None:
        self._settings = settings
        self._groups = groups
        self._history = history
        self._faults: list[_Fault] = []
        self._forget()

    def _forget(self) -> None:
        self._faults = []
        # Rows: sum of the excess, of the peers' time, of the own time, number of steps of the running batch, and sum
        # of the excess up to the peers' time: pauses that hit ranks at random are not to look like turns.
        self._running = np.zeros((5, 0, 0))
        self._excess = np.zeros((_BATCHES, 0, 0))
        self._time = np.zeros((_BATCHES, 0, 0))
        self._own = np.zeros((_BATCHES, 0, 0))
        self._lead = np.zeros((_BATCHES, 0, 0))
        self._seen = np.zeros((_BATCHES, 0, 0))
        self._iteration: list[float] = []
        self._iteration_ms = 0.0
        self._steps = 0

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:
        """Take one closed step; return the findings that it opens or closes."""
        if matrix.session_start:
            self._forget()
        tags = [matrix.tags[index] for index in matrix.tag_ids]
        for column, tag in enumerate(tags):
            if tag.name == _ITERATION:
                self._iteration = [*self._iteration[-_BATCH_STEPS * _BATCHES :], float(merged.mean[column])]
        if self._steps % _BATCH_STEPS == 0 or not self._iteration_ms:
            finite = [value for value in self._iteration if np.isfinite(value)]
            self._iteration_ms = float(np.median(finite)) if finite else 0.0
        judged = np.array([tag.kind is TagKind.TIMING for tag in tags], dtype=np.bool_)
        if not judged.any():
            return ()
        ids = matrix.tag_ids[judged]
        values = matrix.columns[Column.MEAN][:, judged]
        grouping = self._groups.local(len(values))
        self._add(values, ids, grouping)
        self._steps += 1
        if self._steps % _BATCH_STEPS:
            return ()
        self._close_batch()
        return tuple(self._decide(matrix, ids, grouping))

    def _add(self, values: Float64Array, ids: Int64Array, grouping: Grouping) -> None:
        tags = int(ids.max(initial=-1)) + 1
        for name in ("_running", "_excess", "_time", "_own", "_lead", "_seen"):
            setattr(self, name, grown(getattr(self, name), len(values), tags))
        grid = grouping.gather(values)
        others = grouping.scatter(np.broadcast_to(median(grid)[:, None], grid.shape))
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = np.maximum(_EXCESS_BOUND, _EXCESS_BOUND_OF_ITERATION * self._iteration_ms / others)
            excess = np.clip(values / others - 1, -bound, bound)
        known = np.isfinite(excess)
        running = self._running[:, :, ids]
        running[0] += np.where(known, excess, 0.0)
        running[1] += np.where(known, others, 0.0)
        running[2] += np.where(known, values, 0.0)
        running[3] += known
        running[4] += np.where(known, np.minimum(excess, _EXCESS_BOUND), 0.0)
        self._running[:, :, ids] = running

    def _close_batch(self) -> None:
        excess, time, own, count, lead = self._running
        place = (self._steps // _BATCH_STEPS - 1) % _BATCHES
        several = np.maximum(count, 1)
        self._excess[place] = excess / several
        self._time[place] = time / several
        self._own[place] = own / several
        self._lead[place] = lead / several
        self._seen[place] = count > 0
        self._running[:] = 0.0

    def _decide(self, matrix: StepMatrix, ids: Int64Array, grouping: Grouping) -> list[Finding]:
        seen = self._seen[:, :, ids]
        batches = seen.sum(axis=0)
        several = np.maximum(batches, 1)
        excess, time = self._excess[:, :, ids], self._time[:, :, ids]
        mean = (excess * seen).sum(axis=0) / several
        variance = (((excess - mean) * seen) ** 2).sum(axis=0) / np.maximum(batches - 1, 1)
        # The group's median has more degrees of freedom than a rank's own variance, but does not replace it.
        typical = _typical(np.where(batches > 1, variance, np.nan), grouping)
        variance = np.fmax(variance, typical) * self._dependence(excess - mean, seen, grouping)
        known = batches > 0
        others = grouping.scatter(np.broadcast_to(_count(grouping, known), grouping.gather(mean).shape)) - 1
        # Averaged over all batches the order of the healthy ranks no longer matters, as it does in a single step, where
        # one fast rank of four would make the others' middle too low.
        mean = mean - grouping.scatter(median_of_others(grouping.gather(np.where(known, mean, np.nan))))
        mean = np.where(np.isfinite(mean), mean, 0.0)
        # The middle of a few others has noise of its own; of one other, as much again, seen from half-way between them.
        error = np.sqrt(variance * (1 + 3 / np.maximum(others, 1)) / several)
        milliseconds = mean * (time * seen).sum(axis=0) / several
        enough = np.maximum(
            self._settings.slow_floor_ms, self._settings.slow_iteration_fraction * self._iteration_ms
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where(error > 0, mean / error, np.where(mean > 0, np.inf, 0.0))
        slow = (
            (batches >= _BATCHES_NEEDED)
            & (mean >= self._settings.slow_fraction)
            & (milliseconds >= enough)
            & (score >= self._settings.slow_sigma)
        )
        findings = self._follow(matrix, ids, mean, milliseconds)
        # Times contain each other: the one that is up most is nearest to the cause, and one is enough.
        for rank, column in sorted(np.argwhere(slow).tolist(), key=lambda place: -mean[place[0], place[1]]):
            index = int(ids[column])
            if not any(rank in fault.ranks for fault in self._faults):
                known = seen[:, rank, column] > 0
                own_ms = float(np.median(self._own[known, rank, index]))
                peers_ms = float(np.median(time[known, rank, column]))
                numbers = {
                    "excess_fraction": float(mean[rank, column]),
                    "excess_ms": own_ms - peers_ms,
                    "own_ms": own_ms,
                    "peers_ms": peers_ms,
                }
                findings.append(
                    self._take(
                        matrix,
                        rank,
                        index,
                        since=self._since(rank, index, float(mean[rank, column])),
                        score=float(min(score[rank, column], 1e6)),
                        numbers=numbers,
                    )
                )
        findings += self._rotating(matrix, ids, slow, float(enough))
        return findings

    def _dependence(self, deviation: Float64Array, seen: Float64Array, grouping: Grouping) -> Float64Array:
        """Return by how much the variance of the mean exceeds that of independent batches, shape (W, T), at least 1.

        (1 + r) / (1 - r) for batches that are a first-order autoregression with coefficient r; r from the lagged
        products, its bias of about (1 + 4 r) / n taken away (Kendall, 1954), the median over the group.
        """
        done = min(self._steps // _BATCH_STEPS, _BATCHES)
        newest = self._steps // _BATCH_STEPS - 1
        ordered = (deviation * seen)[(newest - np.arange(done)) % _BATCHES]
        power = (ordered**2).mean(axis=0)
        lagged = (ordered[1:] * ordered[:-1]).sum(axis=0) / done
        with np.errstate(divide="ignore", invalid="ignore"):
            raw = np.where(power > 0, lagged / power, np.nan)
        pooled = _typical(raw + (1 + 4 * raw) / done, grouping)
        r = np.clip(np.nan_to_num(pooled), 0.0, _LARGEST_DEPENDENCE)
        return (1 + r) / (1 - r)

    def _since(self, rank: int, index: int, mean: float) -> int:
        """Return the step at which the rank's run of slow batches began, as far back as is known."""
        done = min(self._steps // _BATCH_STEPS, _BATCHES)
        newest = self._steps // _BATCH_STEPS - 1
        places = (newest - np.arange(done)) % _BATCHES
        excess = self._excess[places, rank, index]
        # Where the sum of what is above half of the usual excess is largest, the change is most likely.
        batches = int(np.argmax(np.cumsum(excess - 0.5 * mean))) + 1
        return self._history.step_ago(batches * _BATCH_STEPS - 1)

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

    def _rotating(self, matrix: StepMatrix, ids: Int64Array, slow: BoolArray, enough: float) -> list[Finding]:
        """Open a finding where nearly every batch has a rank far above its peers, and it is not one rank."""
        findings: list[Finding] = []
        if self._steps < _BATCH_STEPS * _BATCHES:
            return findings
        for column, index in enumerate(ids.tolist()):
            if self._faults or slow[:, column].any():
                continue
            excess = self._lead[:, :, index]
            leaders = np.argmax(excess, axis=1)
            lead = np.take_along_axis(excess, leaders[:, None], axis=1)[:, 0]
            spread = MAD_TO_SIGMA * np.median(np.abs(excess - np.median(excess)))
            time = np.take_along_axis(self._time[:, :, index], leaders[:, None], axis=1)[:, 0]
            leads = (
                (lead >= _LEAD_FRACTION)
                & (lead * time >= enough)
                & (lead >= self._settings.slow_sigma * spread)
            )
            ranks, turns = np.unique(leaders[leads], return_counts=True)
            if leads.sum() < 0.8 * _BATCHES or len(ranks) < 3 or turns.max() > 0.6 * leads.sum():
                continue
            since = self._history.step_ago(_BATCH_STEPS * _BATCHES - 1)
            tag = matrix.tags[index].name
            fault = _Fault(
                tuple(ranks.tolist()),
                index,
                tag,
                since,
                ROTATING,
                float(lead[leads].mean()),
                {
                    "unit": "fraction of the peers' time",
                    "turns": dict(zip(map(str, ranks), turns.tolist(), strict=True)),
                },
                f"{name_ranks(ranks.tolist())}: take turns in being slow since step {since}: {tag} of one of them is "
                f"{100 * float(lead[leads].mean()):.0f} % above the peers at any time; look for something they share "
                "(storage, a node, garbage collection) rather than for a bad card",
                matrix.step,
            )
            self._faults.append(fault)
            findings.append(_finding(fault, matrix.step, OPEN))
        return findings

    def _follow(
        self, matrix: StepMatrix, ids: Int64Array, mean: Float64Array, milliseconds: Float64Array
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
                still = bool(
                    (self._lead[:, list(fault.ranks), fault.index].max(axis=1) >= _LEAD_FRACTION).mean() > 0.5
                )
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


def _typical(values: Float64Array, grouping: Grouping) -> Float64Array:
    """Return the median over each rank's group, shape (W, T)."""
    grid = grouping.gather(values)
    return grouping.scatter(np.broadcast_to(median(grid)[:, None], grid.shape))


def _count(grouping: Grouping, known: BoolArray) -> Float64Array:
    """Return how many ranks of each group are known, shape (G, 1, T)."""
    counted: Float64Array = np.nansum(grouping.gather(known.astype(np.float64)), axis=1, keepdims=True)
    return counted
