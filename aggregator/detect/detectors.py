"""All detectors of a run, wired together: one call a closed step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggregator.detect.history import History
from aggregator.detect.nonfinite import NonfiniteDetector
from aggregator.detect.outlier import OutlierDetector

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding
    from aggregator.detect.peers import PeerGroups
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

_HISTORY_STEPS = 64


class Detectors:
    """Runs every detector on every closed step, in ascending order of steps."""

    def __init__(self, settings: DetectionSettings, groups: PeerGroups) -> None:
        self._history = History(steps=_HISTORY_STEPS)
        self._nonfinite = NonfiniteDetector(settings)
        self._outlier = OutlierDetector(settings, groups, self._history)

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:
        """Take one closed step; return what is new about what is wrong, the gravest kind first."""
        self._history.add(matrix)
        return (*self._nonfinite.observe(matrix, merged), *self._outlier.observe(matrix, merged))


def default_detectors(settings: DetectionSettings, groups: PeerGroups) -> Detectors:
    """Return the detectors of a run."""
    return Detectors(settings, groups)
