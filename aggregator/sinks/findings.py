"""Appends findings to `findings.jsonl`, one JSON object a line, and says each in the log."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from aggregator.detect.finding import Finding
    from aggregator.sinks.sink import ClosedStep

_LOGGER = logging.getLogger("crossrank")


class FindingsFile:
    """The findings of a run. A line is written at once and whole. Raises OSError where the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, closed: ClosedStep) -> None:
        """Append the findings of one step."""
        for finding in closed.findings:
            self.append(finding)

    def append(self, finding: Finding) -> None:
        """Append one finding."""
        self._file.write(json.dumps(_plain(asdict(finding)), allow_nan=False) + "\n")
        self._file.flush()
        _LOGGER.warning("%s: %s", finding.kind, finding.message)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _plain(value: object) -> object:
    """Return the value as JSON can hold it: numbers that are not finite become their names."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
