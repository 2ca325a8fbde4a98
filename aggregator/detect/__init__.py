"""Detectors: pure functions of closed steps with their own small state, one file a kind of finding."""
