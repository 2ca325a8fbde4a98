"""What a person is told at the end of a run: where the curves are, how to open them, what was found."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, NamedTuple

from aggregator.sinks import run_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FINDINGS = "findings.jsonl"
_SHOWN_FINDINGS = 10


class Findings(NamedTuple):
    """What a findings file says.

    messages: the newest line of each finding. ranks: all that one names. unreadable_lines: how many could not
    be understood.
    """

    messages: tuple[str, ...]
    ranks: frozenset[int]
    unreadable_lines: int


def read_findings(run_dir: Path) -> Findings | None:
    """Return the findings of a run, None when it has no findings file."""
    try:
        lines = (run_dir / _FINDINGS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    messages: dict[object, str] = {}
    ranks: set[int] = set()
    unreadable = 0
    for number, line in enumerate(lines):
        try:
            finding = json.loads(line)
            ranks.update(int(rank) for rank in finding["ranks"])
            messages[finding.get("id") or number] = f"[{finding['kind']}] {finding['message']}"
        except (ValueError, KeyError, TypeError, AttributeError):
            unreadable += 1
    return Findings(tuple(messages.values()), frozenset(ranks), unreadable)


def summary(run_dir: Path, *, complete: bool) -> Iterator[str]:
    """Yield the lines of the summary.

    complete: whether the aggregator closed its files; if not, the absence of a finding means nothing, and the
    summary says so.
    """
    yield f"curves:    {run_dir}"
    yield f"open with: crossrank tensorboard {shlex.quote(str(run_dir))}"
    if not complete:
        yield "the aggregator did not finish: rank curves are whole, merged curves and findings may not be"
    entries = run_file.read(run_dir / "run.json")
    if entries.get("incomplete"):
        yield f"merged curves are incomplete: {entries['incomplete']}"
    elif complete and "last_step" in entries and "merged_from" not in entries:
        yield (
            "how the run ended could not be written, for the reason said above: merged curves and findings may end "
            f"with step {entries['last_step']}; once it is mended, complete them with: "
            f"crossrank merge {shlex.quote(str(run_dir))}"
        )
    ranks = entries.get("ranks")
    if complete and isinstance(ranks, dict) and not any(ranks.values()):
        yield "no rank has reported: no step of Model.train was reached, or a loop of its own has no Recorder"
        return
    if isinstance(ranks, dict) and ranks.get("lost"):
        yield f"gone without a goodbye: ranks {', '.join(map(str, ranks['lost']))}"
    yield from _findings(run_dir, complete=complete)


def _findings(run_dir: Path, *, complete: bool) -> Iterator[str]:
    findings = read_findings(run_dir)
    if findings is None:
        yield f"findings:  unknown, there is no {_FINDINGS}"
        return
    if findings.unreadable_lines:
        yield f"{findings.unreadable_lines} lines of {_FINDINGS} cannot be read"
    if not findings.messages:
        yield "no finding: no rank stood out" if complete else "findings:  none so far"
        return
    yield f"findings:  {len(findings.messages)}"
    yield from (f"  {message}" for message in findings.messages[:_SHOWN_FINDINGS])
    hidden = len(findings.messages) - _SHOWN_FINDINGS
    if hidden > 0:
        yield f"  and {hidden} more in {run_dir / _FINDINGS}"
