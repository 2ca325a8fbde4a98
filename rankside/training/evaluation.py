"""Turns what an evaluation returned into numbers."""

from __future__ import annotations

from typing import Any

from rankside.training.tensor_value import later


def evaluation_numbers(parameters: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the metrics that are one number, as `eval/<metric>`, and the names of those that are not.

    parameters: the callback parameters at the end of an evaluation; `Model.fit` adds the loss to the metrics.
    """
    results = {**(parameters.get("metrics") or {}), **(parameters.get("eval_results") or {})}
    numbers, others = {}, []
    for name, value in results.items():
        if isinstance(value, (int, float)) or getattr(value, "size", 0) == 1:
            numbers[f"eval/{name.removeprefix('eval_')}"] = later(value)
        else:
            others.append(name)
    return numbers, others
