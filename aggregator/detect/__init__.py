"""Detectors: pure functions of closed steps with their own small state, one file a kind of finding.

detectors = default_detectors(DetectionSettings(), PeerGroups())
for matrix, merged in closed_steps:
    findings = detectors.observe(matrix, merged)
"""

from __future__ import annotations

from aggregator.detect.detectors import Detectors, default_detectors
from aggregator.detect.finding import Detector, Finding
from aggregator.detect.peers import PeerGroups
from aggregator.detect.settings import DetectionSettings

__all__ = ["DetectionSettings", "Detector", "Detectors", "Finding", "PeerGroups", "default_detectors"]
