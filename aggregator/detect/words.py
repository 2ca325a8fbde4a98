"""How findings speak of ranks and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED = 8


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 3 and 5`, or for many the first few and how many more there are."""
    if not ranks:
        return "no rank in particular"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        return f"ranks {', '.join(map(str, ranks[:_MOST_NAMED]))} and {len(ranks) - _MOST_NAMED} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def number(value: float) -> str:
    """Return a number as a person writes it: four significant digits."""
    return f"{value:.4g}"


def apart(values: Sequence[float]) -> list[str]:
    """Return numbers as a person writes them, with as many digits as it takes to tell different ones apart."""
    for digits in range(4, 18):
        shown = [f"{value:.{digits}g}" for value in values]
        if len(set(shown)) == len(set(values)):
            break
    return shown
