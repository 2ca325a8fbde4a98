"""A finding: what is wrong, on which ranks, since when, how that is known, and what to do.

One fault is one finding: it is said once when it opens, again when something important about it changes, and
once more when it is over. The lines of one fault share `id`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggregator.step import MergedStep, StepMatrix

OPEN, UPDATE, CLOSED = "open", "update", "closed"
TRANSIENT, CHRONIC, ROTATING, GLOBAL = "transient", "chronic", "rotating", "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong.

    kind: nonfinite, outlier, mismatch, slow, stalled, silent or global.
    ranks: the ranks at fault, ascending; empty where nobody, or nobody in particular, is.
    tag: the metric that shows it.
    first_step: the first bad step. step: the step at which it was reported.
    persistence: transient (short so far), chronic, rotating (the same fault wanders over ranks) or global.
    score: how far beyond normal, in the unit that the kind names in its evidence.
    evidence: the numbers behind it; JSON values only.
    message: one sentence that a person can act on.
    status: open, update or closed.
    id: the same for all lines of one fault, and the same in every replay of the same steps.
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
    status: str = OPEN
    id: str = ""


def finding_id(kind: str, tag: str, first_step: int, ranks: tuple[int, ...]) -> str:
    """Return the name of a fault, as in `outlier/loss/120/2`; a fault of nobody ends in `all`."""
    return f"{kind}/{tag}/{first_step}/{'-'.join(map(str, ranks[:8])) or 'all'}"


class Detector(Protocol):
    """Looks at every closed step, in ascending order of steps, and says what it found in it."""

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> Iterable[Finding]:
        """Take one closed step; return what is new about what is wrong."""
        ...
