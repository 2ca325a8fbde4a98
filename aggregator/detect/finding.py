"""A finding: what is wrong, on which ranks, since when, how that is known, and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggregator.step import MergedStep, StepMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong.

    kind: nonfinite, outlier, mismatch, slow, stalled, silent or global.
    ranks: the ranks at fault, ascending; empty where nobody, or nobody in particular, is.
    tag: the metric that shows it.
    first_step: the first bad step. step: the step at which it was reported.
    persistence: transient, chronic, rotating or global.
    score: how far beyond normal, in the unit that the kind names in its evidence.
    evidence: the numbers behind it; JSON values only.
    message: one sentence that a person can act on.
    """

    kind: str
    ranks: tuple[int, ...]
    tag: str
    first_step: int
    step: int
    persistence: str
    score: float
    evidence: Mapping[str, object] = field(default_factory=dict)
    message: str


class Detector(Protocol):
    """Looks at every closed step, in ascending order of steps, and says what it found in it."""

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> Iterable[Finding]:
        """Take one closed step; return what is newly wrong."""
        ...
