"""All detectors of a run, wired together: one call a closed step.

The detectors of single ranks go first; the one of all ranks sees what they found, so that what a single rank
explains is not reported as everybody's fault.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggregator.detect.causes import find_causes
from aggregator.detect.finding import CLOSED, OPEN, Finding
from aggregator.detect.health import HealthDetector
from aggregator.detect.history import History
from aggregator.detect.mismatch import MismatchDetector
from aggregator.detect.nonfinite import NonfiniteDetector
from aggregator.detect.offset import OffsetDetector
from aggregator.detect.outlier import OutlierDetector
from aggregator.detect.replicated import ReplicatedTags
from aggregator.detect.rotation import Rotation
from aggregator.detect.slow import SlowDetector
from rankside.tags import TagKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggregator.detect.causes import Cause
    from aggregator.detect.peers import PeerGroups
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

_HISTORY_STEPS = 64
_EXPLAINING = ("nonfinite", "mismatch", "outlier")
_EXPLAINED = 3  # of what a fault explains, the last ones are told


class Detectors:
    """Runs every detector on every closed step, in ascending order of steps."""

    def __init__(self, settings: DetectionSettings, groups: PeerGroups) -> None:
        self._history = History(steps=_HISTORY_STEPS)
        self._replicated = ReplicatedTags(settings.replicated_changes)
        self._nonfinite = NonfiniteDetector(settings)
        self._mismatch = MismatchDetector(settings, groups, self._replicated)
        self._outlier = OutlierDetector(settings, groups, self._history, self._is_local)
        self._offset = OffsetDetector(settings, groups, self._history)
        self._slow = SlowDetector(settings, groups)
        self._health = HealthDetector(settings, self._history)
        self._rotation = Rotation(settings)
        self._open: dict[str, Finding] = {}
        self._causes: dict[str, list[Cause]] = {}
        self._explained: dict[str, list[str]] = {}

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:
        """Take one closed step; return what is new about what is wrong, the gravest kind first."""
        ended = self._end_session(matrix.step) if matrix.session_start else []
        self._history.add(matrix)
        of_ranks = [
            self._with_causes(self._rotation.mark(finding), matrix)
            for detector in (self._nonfinite, self._mismatch, self._outlier, self._offset, self._slow)
            for finding in detector.observe(matrix, merged)
        ]
        self._remember(of_ranks)
        of_all = self._health.observe(matrix, merged, self._explanation)
        self._remember(of_all)
        return (*ended, *(self._with_explained(finding) for finding in (*of_ranks, *of_all)))

    def _end_session(self, step: int) -> list[Finding]:
        """Close what is open, since all that was learnt is void; what goes on is found anew."""
        ended = [
            replace(
                finding,
                step=step,
                status=CLOSED,
                message=f"training began again at step {step}, so that this is looked for anew: {finding.message}",
            )
            for finding in self._open.values()
        ]
        self._open, self._causes, self._explained = {}, {}, {}
        self._rotation.forget()
        return ended

    def _is_local(self, index: int, kind: TagKind) -> bool:
        if kind is TagKind.UNKNOWN:
            return not self._replicated.is_replicated(index, kind)
        return kind is TagKind.LOCAL

    def _remember(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding.status == CLOSED:
                self._open.pop(finding.id, None)
                self._explained.pop(finding.id, None)
            elif "explains" not in finding.evidence:
                self._open[finding.id] = finding

    def _with_explained(self, finding: Finding) -> Finding:
        """Return the finding with what all ranks show because of it; later lines of the same fault repeat it."""
        explains = finding.evidence.get("explains")
        if isinstance(explains, str):
            told = self._explained.setdefault(finding.id, [])
            told[:] = [*told, explains][-_EXPLAINED:]
        told = self._explained.get(finding.id, [])
        if not told:
            return finding
        return replace(
            finding,
            message=f"{finding.message}; this explains what all ranks show {'; '.join(told)}",
            evidence={**finding.evidence, "explains": list(told)},
        )

    def _explanation(self, step: int, by_step: int) -> Finding | None:
        """Return the open finding about single ranks, or about non-finite values, that began nearest to `step`.

        by_step: the last step at which it may have begun.
        """
        begun = [
            each for each in self._open.values() if each.kind in _EXPLAINING and each.first_step <= by_step
        ]
        return min(begun, key=lambda finding: abs(finding.first_step - step), default=None)

    def _with_causes(self, finding: Finding, matrix: StepMatrix) -> Finding:
        """Return the finding with what moved before it; later lines of the same fault repeat what the first said."""
        if finding.kind not in _EXPLAINING or finding.status == CLOSED:
            self._causes.pop(finding.id, None)
            return finding
        if finding.status == OPEN:
            world_size = matrix.columns.shape[1]
            causes = find_causes(
                self._history,
                matrix.tags,
                ranks=finding.ranks,
                step=finding.first_step,
                world_size=world_size,
            )
            self._causes[finding.id] = [
                each
                for each in causes
                if each.tag != finding.tag and (each.moved or each.tag == "learning-rate")
            ]
        told = self._causes.get(finding.id)
        if not told:
            return finding
        message = "; ".join((finding.message, *(cause.sentence() for cause in told)))
        return replace(
            finding,
            message=message,
            evidence={**finding.evidence, "causes": [cause._asdict() for cause in told]},
        )


def default_detectors(settings: DetectionSettings, groups: PeerGroups) -> Detectors:
    """Return the detectors of a run."""
    return Detectors(settings, groups)
