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
    """Turns members into signs of life for the detector.

    lost_seconds: the silence from which the detector takes a rank for gone; a rank whose process has ended is
    shown as silent for at least that long, since nothing more can be expected of it.
    """

    def __init__(self, members: Members, detector: SilenceDetector, *, lost_seconds: float) -> None:
        self._members = members
        self._detector = detector
        self._lost_seconds = lost_seconds

    def look(self, *, now: float) -> tuple[Finding, ...]:
        """Return what is new about who is silent or stalled. now: seconds of the service's clock."""
        size = 1 + max((member.hello.rank for member in self._members), default=-1)
        last_step = np.full(size, -1, np.int64)
        phase = [""] * size
        phase_seconds, silent_seconds = np.zeros(size), np.zeros(size)
        left, seen = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        for member in self._members:
            rank = member.hello.rank
            last_step[rank] = member.step
            phase[rank] = member.phase
            phase_seconds[rank] = now - member.phase_since if member.phase_since else 0.0
            silence = now - member.heard
            gone = member.presence is Presence.LOST
            silent_seconds[rank] = max(silence, self._lost_seconds) if gone else silence
            left[rank] = member.presence is Presence.LEFT
            seen[rank] = True
        signs = SignsOfLife(last_step, phase, phase_seconds, silent_seconds, left, seen)
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
