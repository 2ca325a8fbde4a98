"""Finds a rank that is far off from the first step on.

What differs between ranks from the beginning is mostly their nature, as with unequal data. It is a fault where the
others agree with each other and one rank stands beyond all of them by many times what they differ among themselves,
and by many times what a rank varies from step to step. Judged once a training, from its first steps, and only for
metrics that are known to be comparable and are reported at every one of them. Of few ranks, two that are off alike
hide each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.detect.finding import CHRONIC, CLOSED, Finding, finding_id
from aggregator.detect.reference import MAD_TO_SIGMA, comparable, median
from aggregator.detect.words import name_ranks, number
from rankside.tags import TagKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.history import History
    from aggregator.detect.peers import PeerGroups
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]

_MANY_PEERS = 16  # from which on the robust deviation of normal peers is hardly ever small by chance


class _Offset(NamedTuple):
    """How far a rank stands from the nearest of its peers, in spreads of theirs; negative where it is below them."""

    rank: int
    spreads: float


class _Half(NamedTuple):
    """Each rank's median over half of the first steps, and its robust deviation from that; shape (W,)."""

    level: Float64Array
    noise: Float64Array

    @classmethod
    def of(cls, values: Float64Array) -> _Half:
        level = median(values[None])[0]
        return cls(level, MAD_TO_SIGMA * median(np.abs(values - level)[None])[0])


@dataclass(frozen=True, slots=True)
class _Fault:
    finding: Finding
    index: int
    peers: Int64Array
    distance: float


class OffsetDetector:
    """Opens a finding at the end of the first steps, and closes it when the rank is among its peers."""

    def __init__(self, settings: DetectionSettings, groups: PeerGroups, history: History) -> None:
        """Judge with these thresholds. history: the latest steps, this one included."""
        self._settings = settings
        self._groups = groups
        self._history = history
        self._forget()

    def _forget(self) -> None:
        self._reported = np.zeros(0, dtype=np.int64)  # steps of each tag
        self._faults: list[_Fault] = []

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:  # noqa: ARG002
        """Take one closed step; return the findings that it opens or closes."""
        if matrix.session_start:
            self._forget()
        more = len(matrix.tags) - len(self._reported)
        self._reported = np.pad(self._reported, (0, max(more, 0)))
        self._reported[matrix.tag_ids] += 1
        findings = self._follow(matrix)
        due = matrix.tag_ids[self._reported[matrix.tag_ids] == self._settings.offset_steps]
        for index in due.tolist():
            if matrix.tags[index].kind is TagKind.LOCAL:
                findings += self._judge(matrix, index)
        return tuple(findings)

    def _judge(self, matrix: StepMatrix, index: int) -> list[Finding]:
        world_size = matrix.columns.shape[1]
        tag = matrix.tags[index].name
        steps, values = self._history.series(index, world_size)
        if len(steps) < self._settings.offset_steps:
            return []
        # A spike must not make an offset, nor what began on the way.
        compared = comparable(values.reshape(-1, 1), [tag]).reshape(values.shape)
        halves = [_Half.of(half) for half in np.array_split(compared, 2)]
        shown = median(values[None])[0]
        grouping = self._groups.local(world_size)
        findings = []
        for row, present in zip(grouping.members, grouping.present, strict=True):
            members = row[present & np.isfinite([half.level[row] for half in halves]).all(axis=0)]
            offset = self._far_off(halves, members)
            if offset is None or any(offset.rank in fault.finding.ranks for fault in self._faults):
                continue
            peers = members[members != offset.rank]
            finding = _finding(
                offset,
                tag,
                own=float(shown[offset.rank]),
                peers=shown[peers],
                since=int(steps[0]),
                step=matrix.step,
            )
            distance = float(shown[offset.rank] - np.median(shown[peers]))
            self._faults.append(_Fault(finding, index, peers, distance))
            findings.append(finding)
        return findings

    def _far_off(self, halves: list[_Half], members: Int64Array) -> _Offset | None:
        if len(members) <= self._settings.offset_peers:
            return None
        first, second = (self._farthest(half, members) for half in halves)
        nearer = min(first, second, key=lambda offset: abs(offset.spreads))
        far = first.rank == second.rank and abs(nearer.spreads) >= self._settings.offset_spreads
        return nearer if far else None

    def _farthest(self, half: _Half, members: Int64Array) -> _Offset:
        """Return the rank that stands farthest beyond its peers: the gap over their range (Dixon, 1950).

        Of many peers, over their robust deviation.
        """
        ranks = members[np.argsort(half.level[members])]
        ordered = half.level[ranks]
        found = []
        for rank, peers, gap in (
            (ranks[-1], ordered[:-1], ordered[-1] - ordered[-2]),
            (ranks[0], ordered[1:], ordered[0] - ordered[1]),
        ):
            spread = _deviation(peers) if len(peers) >= _MANY_PEERS else peers[-1] - peers[0]
            floor = self._settings.outlier_floor * abs(float(np.median(peers)))
            noise = float(np.median(half.noise[members[members != rank]]))
            found.append(_Offset(int(rank), float(gap / max(spread, floor, noise, 1e-300))))
        return max(found, key=lambda offset: abs(offset.spreads))

    def _follow(self, matrix: StepMatrix) -> list[Finding]:
        findings = []
        for fault in list(self._faults):
            _, values = self._history.series(fault.index, matrix.columns.shape[1])
            recent = median(values[None, -self._settings.quiet_steps :])[0]
            distance = recent[fault.finding.ranks[0]] - median(recent[None, fault.peers, None])[0, 0]
            if abs(distance) < self._settings.back_fraction * abs(fault.distance):
                self._faults.remove(fault)
                message = f"{name_ranks(fault.finding.ranks)}: {fault.finding.tag} is among its peers' now"
                findings.append(replace(fault.finding, step=matrix.step, status=CLOSED, message=message))
        return findings


def _deviation(values: Float64Array) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _finding(offset: _Offset, tag: str, *, own: float, peers: Float64Array, since: int, step: int) -> Finding:
    direction = "above" if offset.spreads > 0 else "below"
    first = "from the first step on" if since <= 1 else f"from step {since} on, which is the first one known"
    low, middle, high = float(peers.min()), float(np.median(peers)), float(peers.max())
    return Finding(
        kind="outlier",
        ranks=(offset.rank,),
        tag=tag,
        first_step=since,
        step=step,
        persistence=CHRONIC,
        score=min(abs(offset.spreads), 1e6),
        evidence={
            "unit": "spreads of the peers",
            "direction": direction,
            "peers_compared": len(peers),
            "value": own,
            "peers": middle,
            "peers_low": low,
            "peers_high": high,
        },
        message=f"rank {offset.rank}: {tag} has been far {direction} its peers {first}: {number(own)} against "
        f"{number(middle)}; the other {len(peers)} ranks of its group lie between {number(low)} and "
        f"{number(high)}; look at its data and at what it was initialised from",
        id=finding_id("outlier", tag, since, (offset.rank,)),
    )
