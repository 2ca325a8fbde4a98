"""Finds a rank that parts from its peers: a lasting change against them, judged by the rank's own noise.

A constant difference between ranks is their nature and no finding, unless it is gross (`offset.py`); a change of
it is. One rank of a group of three or more is named; of two peers both are, because the numbers cannot tell which
one it is. A finding closes when the rank is back among its peers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.detect.finding import CHRONIC, CLOSED, OPEN, TRANSIENT, UPDATE, Finding, finding_id
from aggregator.detect.reference import comparable
from aggregator.detect.shift import Alarm, ShiftTest
from aggregator.detect.whiten import Scores, Whitener
from aggregator.detect.words import name_ranks, number
from rankside.tags import TagKind
from rankside.window import Column

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from aggregator.detect.history import History
    from aggregator.detect.peers import Grouping, PeerGroups
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]
    BoolArray = npt.NDArray[np.bool_]

_LEVEL_GAIN = 1 / 32
_STEPS_BEFORE_CLOSING = 64


@dataclass(slots=True)
class _Parted:
    """One tag by which a rank stands apart. level: recent distance in the rank's standard deviations."""

    tag: str
    first_step: int
    level: float = 0.0
    weight: float = 0.0
    peak: float = 0.0
    age: int = 0
    quiet: int = 0


class _Shift(NamedTuple):
    strength: float
    since: int


@dataclass(slots=True)
class _Fault:
    ranks: tuple[int, ...]
    tag: str
    first_step: int
    message: str
    score: float
    evidence: dict[str, object]
    chronic: bool
    parted: dict[int, _Parted]
    also: dict[str, dict[str, float]] = field(default_factory=dict)


class OutlierDetector:
    """Opens a finding when the sequential test of a rank passes its threshold."""

    def __init__(
        self,
        settings: DetectionSettings,
        groups: PeerGroups,
        history: History,
        is_local: Callable[[int, TagKind], bool] = lambda _, kind: kind in {TagKind.LOCAL, TagKind.UNKNOWN},
    ) -> None:
        """Judge with these thresholds.

        history: the latest steps, this one included. is_local: says of a tag's place and kind if it is
        judged.
        """
        self._settings = settings
        self._groups = groups
        self._history = history
        self._is_local = is_local
        self._whitener = Whitener(settings)
        self._test = ShiftTest(settings.outlier_false_alarms)
        self._faults: list[_Fault] = []

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:  # noqa: ARG002
        """Take one closed step; return the findings that it opens, changes or closes."""
        if matrix.session_start:
            self._whitener.forget()
            self._test.forget()
            self._faults = []
        judged = np.array(
            [self._is_local(int(index), matrix.tags[index].kind) for index in matrix.tag_ids], dtype=np.bool_
        )
        if not judged.any():
            return ()
        ids = matrix.tag_ids[judged]
        values = comparable(
            matrix.columns[Column.MEAN][:, judged], [matrix.tags[index].name for index in ids]
        )
        grouping = self._groups.local(len(values))
        frozen, excluded = self._suspects(values.shape, ids)
        scores = self._whitener.observe(
            values,
            ids,
            grouping,
            frozen=frozen,
            excluded=excluded,
            suspect=self._test.suspects(len(values), ids),
        )
        if scores.renewed.any():
            self._test.clear(scores.renewed, ids)
        ready = (scores.learnt >= self._settings.warmup_steps) & ~frozen
        widening = 1 + self._settings.outlier_widening / np.maximum(scores.learnt, 1)
        alarm = self._test.observe(
            np.where(ready, scores.score, np.nan), scores.phi, widening, ids, step=matrix.step
        )
        findings = self._follow(matrix, scores, ids) if self._faults else []
        if (np.abs(alarm.strength) >= 1).any():
            findings += self._open(matrix, ids, grouping, alarm, excluded)
        return tuple(findings)

    def _suspects(self, shape: tuple[int, ...], ids: Int64Array) -> tuple[BoolArray, BoolArray]:
        # Tag by tag in memory, as what is selected by tag is: numpy is several times slower where this is mixed.
        frozen = np.zeros(shape, dtype=np.bool_, order="F")
        excluded = np.zeros(shape, dtype=np.bool_, order="F")
        for fault in self._faults:
            for index in fault.parted:
                column = np.flatnonzero(ids == index)
                frozen[np.ix_(np.array(fault.ranks), column)] = True
                if len(fault.ranks) == 1:
                    excluded[np.ix_(np.array(fault.ranks), column)] = True
        return frozen, excluded

    def _open(
        self, matrix: StepMatrix, ids: Int64Array, grouping: Grouping, alarm: Alarm, excluded: BoolArray
    ) -> list[Finding]:
        alarmed = np.abs(alarm.strength) >= 1
        findings = []
        done: set[tuple[int, int]] = set()
        ranks, columns = np.nonzero(alarmed)
        for place in np.argsort(-np.abs(alarm.strength[ranks, columns]), kind="stable"):
            rank, column = int(ranks[place]), int(columns[place])
            group = int(grouping.group_of[rank])
            if (group, column) in done:
                continue
            done.add((group, column))
            members = grouping.members[group][grouping.present[group]]
            compared = members[matrix.reported[members][:, matrix.tag_ids == ids[column]][:, 0]]
            compared = compared[~excluded[compared, column]]
            shift = _Shift(float(alarm.strength[rank, column]), int(alarm.since[rank, column]))
            findings += self._take(matrix, int(ids[column]), rank, compared, shift)
            # A rank that is off pulls the centre of its peers: what they gathered against it is no evidence.
            cleared = np.zeros(alarmed.shape, dtype=np.bool_)
            against = np.sign(alarm.strength[members, column]) != np.sign(alarm.strength[rank, column])
            cleared[members[against], column] = True
            cleared[rank, column] = True
            self._test.clear(cleared, ids)
        return findings

    def _take(
        self, matrix: StepMatrix, index: int, rank: int, compared: Int64Array, shift: _Shift
    ) -> list[Finding]:
        tag = matrix.tags[index].name
        first_step = shift.since
        together = len(compared) <= 2
        named = tuple(sorted(int(each) for each in compared)) if together else (rank,)
        shown = self._numbers(matrix, index, rank, compared, first_step)
        joined = next((fault for fault in self._faults if fault.ranks == named), None)
        if joined is not None:
            joined.parted[index] = _Parted(tag, first_step)
            if tag in {joined.tag, *joined.also}:
                return []  # it was back for a while, of which nothing was said
            joined.also[tag] = shown
            joined.message += f"; {tag} also, since step {first_step}"
            return [self._finding(joined, matrix.step, UPDATE)]
        direction = "above" if shift.strength > 0 else "below"
        fault = _Fault(
            named,
            tag,
            first_step,
            _sentence(named, tag, first_step, shown, direction=direction, peers=len(compared) - 1),
            abs(shift.strength),
            {
                "unit": "alarm thresholds",
                "direction": direction,
                "peers_compared": len(compared) - 1,
                **shown,
            },
            matrix.step - first_step >= self._settings.chronic_steps,
            {index: _Parted(tag, first_step)},
        )
        self._faults.append(fault)
        return [self._finding(fault, matrix.step, OPEN)]

    def _numbers(
        self, matrix: StepMatrix, index: int, rank: int, compared: Int64Array, first_step: int
    ) -> dict[str, float]:
        """Return the rank's mean and its peers' median since the change, and both before it."""
        steps, values = self._history.series(index, matrix.columns.shape[1])
        others = compared[compared != rank]
        after = steps >= first_step
        shown = {}
        for name, where in (("", after), ("_before", ~after)):
            own, peers = values[where][:, rank], values[where][:, others]
            own, peers = own[np.isfinite(own)], peers[np.isfinite(peers)]
            if len(own) and len(peers):
                shown["value" + name] = float(own.mean())
                shown["peers" + name] = float(np.median(peers))
        return shown

    def _follow(self, matrix: StepMatrix, scores: Scores, ids: Int64Array) -> list[Finding]:
        findings = []
        for fault in list(self._faults):
            for index, parted in list(fault.parted.items()):
                column = np.flatnonzero(ids == index)
                if len(column) and self._is_back(parted, scores, fault.ranks[0], int(column[0])):
                    del fault.parted[index]
            if not fault.parted:
                self._faults.remove(fault)
                findings.append(self._finding(fault, matrix.step, CLOSED))
            elif not fault.chronic and matrix.step - fault.first_step >= self._settings.chronic_steps:
                fault.chronic = True
                fault.message += f"; still so after {matrix.step - fault.first_step} steps"
                findings.append(self._finding(fault, matrix.step, UPDATE))
        return findings

    def _is_back(self, parted: _Parted, scores: Scores, rank: int, column: int) -> bool:
        deviation, sigma = scores.deviation[rank, column], scores.sigma[rank, column]
        if not np.isfinite(deviation) or sigma <= 0:
            return False
        clip = self._settings.outlier_clip
        parted.age += 1
        parted.weight += _LEVEL_GAIN * (1 - parted.weight)
        parted.level += _LEVEL_GAIN * (float(np.clip(deviation / sigma, -clip, clip)) - parted.level)
        level = abs(parted.level / parted.weight)
        parted.peak = max(parted.peak, level)
        parted.quiet = parted.quiet + 1 if level < self._settings.back_fraction * parted.peak else 0
        return parted.age >= _STEPS_BEFORE_CLOSING and parted.quiet >= self._settings.quiet_steps

    def _finding(self, fault: _Fault, step: int, status: str) -> Finding:
        message = fault.message
        if status == CLOSED:
            message = f"{name_ranks(fault.ranks)}: back among the peers by step {step}, away since {fault.first_step}"
        return Finding(
            kind="outlier",
            ranks=fault.ranks,
            tag=fault.tag,
            first_step=fault.first_step,
            step=step,
            persistence=CHRONIC if fault.chronic else TRANSIENT,
            score=fault.score,
            evidence={**fault.evidence, "also": dict(fault.also)},
            message=message,
            status=status,
            id=finding_id("outlier", fault.tag, fault.first_step, fault.ranks),
        )


def _sentence(
    named: tuple[int, ...], tag: str, first_step: int, shown: dict[str, float], *, direction: str, peers: int
) -> str:
    value, others = shown.get("value", np.nan), shown.get("peers", np.nan)
    if len(named) > 1:
        return (
            f"{name_ranks(named)}: {tag} has parted between them since step {first_step}, by "
            f"{number(abs(value - others))}; with two peers one cannot tell which of them is wrong"
        )
    up = direction == "above"
    where = f"{direction} its peers"
    if np.isfinite(value) and np.isfinite(others) and (value > others) != up:
        where = f"{'up' if up else 'down'} towards its peers"  # by nature it stands on the other side of them
    sentence = (
        f"rank {named[0]}: {tag} has moved {where} since step {first_step}: {number(value)} against {number(others)}, "
        f"the median of the other {peers} ranks of its group"
    )
    if "value_before" in shown:
        sentence += f" ({number(shown['value_before'])} against {number(shown['peers_before'])} before)"
    return sentence
