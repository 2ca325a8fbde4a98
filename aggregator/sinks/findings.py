"""Appends findings to `findings.jsonl`, one JSON object a line, and says each in the log."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from aggregator.detect.finding import Finding

CLOCKED_KINDS = frozenset({"stalled", "silent"})
_LOGGER = logging.getLogger("crossrank")


class FindingsFile:
    """The findings of a run. A line is written at once and whole. Raises OSError where the file cannot be opened.

    quiet: do not say the findings in the log, since that was done when they were new.
    """

    def __init__(self, path: Path, *, quiet: bool = False) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._quiet = quiet

    def announce(self, finding: Finding) -> None:
        """Append one finding."""
        self._file.write(json.dumps(plain(finding), allow_nan=False) + "\n")
        self._file.flush()
        if not self._quiet:
            _LOGGER.warning("%s: %s", finding.kind, finding.message)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def clocked_lines(path: Path) -> list[str]:
    """Return the lines of a findings file that no merge from files can find again, since they need a clock."""
    return [line for line, finding in _lines(path) if finding.get("kind") in CLOCKED_KINDS]


def keep_unfound(path: Path, earlier: Path) -> None:
    """Put in front of the findings those of an earlier file that are not among them, told by their id."""
    found = _lines(path)
    ids = [finding.get("id") for _, finding in found]
    unfound = [(line, finding) for line, finding in _lines(earlier) if finding.get("id") not in ids]
    path.write_text("".join(line for line, _ in unfound + found), encoding="utf-8")


def _lines(path: Path) -> list[tuple[str, dict[str, object]]]:
    """Return each line with what it holds; one that a full disk or a kill has cut short is left out."""
    lines = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        with contextlib.suppress(ValueError):
            finding = json.loads(line)
            if isinstance(finding, dict) and line.endswith("\n"):
                lines.append((line, finding))
    return lines


def plain(finding: Finding) -> dict[str, object]:
    """Return the finding as a JSON object can hold it."""
    return {name: _plain(value) for name, value in asdict(finding).items()}


def _plain(value: object) -> object:
    """Return the value as JSON can hold it: numbers that are not finite become their names."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
