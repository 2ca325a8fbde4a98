"""A finding as a card of Markdown, for TensorBoard's text page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding


def card(finding: Finding) -> str:
    """Return the finding's sentence, and a table of what is behind it."""
    ranks = ", ".join(map(str, finding.ranks)) or "none in particular"
    rows = {
        "status": finding.status,
        "ranks": ranks,
        "first bad step": finding.first_step,
        "reported at step": finding.step,
        "persistence": finding.persistence,
        "score": f"{finding.score:.4g}",
        **finding.evidence,
    }
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items())
    return f"**{finding.kind}**: {finding.message}\n\n| | |\n|---|---|\n{table}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
