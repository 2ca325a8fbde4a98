"""What a person is told at the end of a run: where the curves are, how to open them, what was found."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FINDINGS_FILE = "findings.jsonl"
_SHOWN_FINDINGS = 10


class Findings(NamedTuple):
    """What a findings file says. lines: of each finding, its message; ranks: all that a finding names."""

    messages: tuple[str, ...]
    ranks: frozenset[int]
    unreadable_lines: int


def read_findings(run_dir: Path) -> Findings | None:
    """Return the findings of a run, None when it has no findings file."""
    try:
        lines = (run_dir / FINDINGS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    messages = []
    ranks: set[int] = set()
    unreadable = 0
    for line in filter(str.strip, lines):
        try:
            finding = json.loads(line)
            messages.append(_shown(finding))
            ranks.update(int(rank) for rank in finding["ranks"])
        except (ValueError, KeyError, TypeError):
            unreadable += 1
    return Findings(tuple(messages), frozenset(ranks), unreadable)


def summary(run_dir: Path, *, complete: bool) -> Iterator[str]:
    """Yield the lines of the summary.

    complete: whether the aggregator closed its files; if not, an absent finding means nothing, and the
    summary says so.
    """
    yield f"curves:    {run_dir}"
    yield f"open with: crossrank tensorboard {shlex.quote(str(run_dir))}"
    findings = read_findings(run_dir)
    if not complete:
        yield "the aggregator did not finish: rank curves are whole, merged curves and findings may not be"
    if findings is None:
        yield f"findings:  unknown, there is no {FINDINGS_FILE}"
        return
    if findings.unreadable_lines:
        yield f"{findings.unreadable_lines} lines of {FINDINGS_FILE} cannot be read"
    if not findings.messages:
        yield "no finding: no rank stood out" if complete else "findings:  none so far"
        return
    yield f"findings:  {len(findings.messages)}"
    for message in findings.messages[:_SHOWN_FINDINGS]:
        yield f"  {message}"
    hidden = len(findings.messages) - _SHOWN_FINDINGS
    if hidden > 0:
        yield f"  and {hidden} more in {run_dir / FINDINGS_FILE}"


def _shown(finding: dict[str, object]) -> str:
    """Return a finding as one line; its message alone would not say the kind."""
    return f"[{finding['kind']}] {finding['message']}"
