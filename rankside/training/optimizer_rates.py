"""The learning rates that an optimizer holds, and their tags."""

from __future__ import annotations

from typing import Any

from rankside.tags import Tag, TagKind


def distinct_rates(optimizer: Any) -> list[Any]:
    """Return the optimizer's learning rates, one a parameter group, in the order in which groups first occur.

    A rate is a Parameter or a schedule cell. An optimizer repeats a group's rate once for each parameter;
    groups that share one rate count as one. Returns an empty list for an optimizer that names no rate.
    """
    rates = getattr(optimizer, "learning_rate", None)
    if rates is None:
        return []
    if not getattr(optimizer, "is_group_lr", False):
        return [rates]
    return list({id(rate): rate for rate in rates}.values())


def is_schedule(rate: Any) -> bool:
    """Whether a rate is a schedule cell, to be called with the optimizer's count of steps."""
    return callable(rate) and hasattr(rate, "construct")


def rate_tags(count: int) -> list[Tag]:
    """Return the tags of so many learning rates: `learning-rate`, or one a parameter group."""
    if count <= 1:
        return [Tag("learning-rate", TagKind.REPLICATED, "", "learning rate that this step used")]
    return [
        Tag(
            f"learning-rate/group_{group}",
            TagKind.REPLICATED,
            "",
            f"learning rate of parameter group {group}",
        )
        for group in range(count)
    ]
