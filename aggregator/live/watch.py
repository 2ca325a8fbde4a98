"""Looks at the ranks' signs of life now and then, and reports who is gone or keeps the others waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect.finding import OPEN
from aggregator.detect.silence import SignsOfLife
from aggregator.live.members import Presence
from rankside.adviser import STACKS_PATTERN

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding
    from aggregator.detect.silence import SilenceDetector
    from aggregator.live.members import Members


class Watch:
    """Turns members into signs of life for the detector."""

    def __init__(self, members: Members, detector: SilenceDetector) -> None:
        self._members = members
        self._detector = detector

    def look(self, *, now: float) -> tuple[Finding, ...]:
        """Return what is new about who is silent or stalled. now: seconds of the service's clock."""
        size = 1 + max((member.hello.rank for member in self._members), default=-1)
        last_step = np.full(size, -1, np.int64)
        phase = [""] * size
        failed = [""] * size
        phase_seconds, silent_seconds, ended_seconds = np.zeros(size), np.zeros(size), np.full(size, np.nan)
        lost, left, seen = (np.zeros(size, np.bool_) for _ in range(3))
        for member in self._members:
            rank = member.hello.rank
            last_step[rank] = member.step
            phase[rank] = member.phase
            phase_seconds[rank] = now - member.phase_since if member.phase_since else 0.0
            silent_seconds[rank] = now - member.heard
            ended_seconds[rank] = np.nan if member.ended is None else now - member.ended
            failed[rank] = member.failed
            lost[rank] = member.presence is Presence.LOST
            left[rank] = member.presence is Presence.LEFT
            seen[rank] = True
        signs = SignsOfLife(
            last_step, phase, phase_seconds, silent_seconds, lost, left, seen, ended_seconds, failed
        )
        return tuple(_with_stacks(finding) for finding in self._detector.observe(signs))


def _with_stacks(finding: Finding) -> Finding:
    """Return the finding with the place of the stacks that the ranks are asked to write when they stall."""
    if finding.kind != "stalled" or finding.status != OPEN:
        return finding
    where = [f"rank_{rank}/{STACKS_PATTERN}" for rank in finding.ranks] or [f"rank_*/{STACKS_PATTERN}"]
    return replace(
        finding,
        message=f"{finding.message}; what its threads were doing: {where[0]}",
        evidence={**finding.evidence, "stacks": where},
    )
