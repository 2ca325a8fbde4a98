"""The one path of a number: align, merge, detect, sinks. The live service, relays and the merge from files run it.

Pure but for the sinks: the caller brings blocks, the clock's value, and the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggregator.detect.noise_scale import GradientNoiseScale
from aggregator.merge import merge
from aggregator.sinks.sink import ClosedStep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggregator.align import Aligner
    from aggregator.detect.finding import Detector
    from aggregator.sinks.group import SinkGroup
    from aggregator.step import StepMatrix


class Pipeline:
    """Moves steps that have closed through merge and detection into the sinks."""

    def __init__(self, aligner: Aligner, detector: Detector, sinks: SinkGroup) -> None:
        self.aligner = aligner
        self._detector = detector
        self._noise_scale = GradientNoiseScale()
        self._sinks = sinks

    def advance(self, *, now: float) -> None:
        """Hand on every step that has closed by now."""
        self._hand_on(self.aligner.close(now=now))

    def finish(self) -> None:
        """Close every step that is still open and hand it on."""
        self._hand_on(self.aligner.finish())

    def flush(self) -> bool:
        """Hand everything to the operating system; return whether all of it is there."""
        return self._sinks.flush()

    def close(self) -> None:
        """Flush and close the sinks."""
        self._sinks.close()

    def _hand_on(self, closed: Iterable[StepMatrix]) -> None:
        for matrix in closed:
            merged = merge(matrix)
            findings = tuple(self._detector.observe(matrix, merged))
            derived = self._noise_scale.observe(matrix)
            self._sinks.write(ClosedStep(matrix, merged, findings, derived))
