"""Sees when the same fault wanders from rank to rank, which no single card explains."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from aggregator.detect.finding import CLOSED, OPEN, ROTATING
from aggregator.detect.words import name_ranks

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding
    from aggregator.detect.settings import DetectionSettings

_CULPRITS = 3
_REMEMBERED = 64


class Rotation:
    """Remembers which ranks were named of late, for each kind and tag."""

    def __init__(self, settings: DetectionSettings) -> None:
        self._memory = settings.rotating_steps
        self._named: dict[tuple[str, str], deque[tuple[int, tuple[int, ...]]]] = {}
        self._rotating: dict[str, list[int]] = {}

    def forget(self) -> None:
        """Take all open findings for void, as after a restart."""
        self._rotating = {}

    def mark(self, finding: Finding) -> Finding:
        """Return the finding, called rotating where it is the third rank or later within `rotating_steps`.

        Later lines of the same fault call it so again.
        """
        if finding.status == OPEN and len(finding.ranks) == 1:
            culprits = self._culprits(finding)
            if len(culprits) >= _CULPRITS:
                self._rotating[finding.id] = culprits
        culprits = self._rotating.get(finding.id, [])
        if finding.status == CLOSED:
            self._rotating.pop(finding.id, None)
            return replace(finding, persistence=ROTATING) if culprits else finding
        if not culprits:
            return finding
        return replace(
            finding,
            persistence=ROTATING,
            evidence={**finding.evidence, "rotates_over": culprits},
            message=f"{finding.message}; the same was said of {name_ranks(culprits)} within {self._memory} steps: "
            "look for what they share rather than for one bad card",
        )

    def _culprits(self, finding: Finding) -> list[int]:
        recent = self._named.setdefault((finding.kind, finding.tag), deque(maxlen=_REMEMBERED))
        while recent and (recent[0][0] < finding.step - self._memory or recent[0][0] > finding.step):
            recent.popleft()
        recent.append((finding.step, finding.ranks))
        return sorted({rank for _, ranks in recent for rank in ranks})
