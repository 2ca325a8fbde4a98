"""Says what moved before a fault: learning rate, loss scale, gradient norms.

Looks back no further than the history reaches, and says nothing about what it cannot see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.detect.words import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggregator.detect.history import History
    from rankside.tags import Tag

    Float64Array = npt.NDArray[np.float64]

_LOOK_BACK = 24
_STEPS_BEFORE = 4
# How much a number must move to be named: as a factor of its median before.
_FACTORS = {"learning-rate": 1.5, "loss-scale": 1.9, "grad-norm": 4.0, "local-grad-norm": 8.0}


class Cause(NamedTuple):
    """A number that moved, or did not, before a fault.

    tag, rank (-1 for what all ranks have in common), since: the first step at which it had moved, before: its
    median until then, value: where it went, moved: whether by enough to be named.
    """

    tag: str
    rank: int
    since: int
    before: float
    value: float
    moved: bool

    def sentence(self) -> str:
        """Return it in words, without a full stop."""
        name = self.tag.replace("-", " ") if self.rank < 0 else f"its {self.tag.replace('-', ' ')}"
        if not self.moved:
            return f"{name} unchanged at {number(self.value)}"
        direction = "rose" if self.value > self.before else "fell"
        factor = self.value / self.before if self.before else np.inf
        times = f"{number(factor)}x" if np.isfinite(factor) and factor >= 1 else f"to {number(self.value)}"
        return f"{name} {direction} {times} (from {number(self.before)}) from step {self.since}"


def find_causes(
    history: History, tags: Sequence[Tag], *, ranks: tuple[int, ...], step: int, world_size: int
) -> list[Cause]:
    """Return what moved up to this step: first what all ranks have in common, then the ranks' own.

    ranks: whose own numbers to look at; the first of them stands for all.
    """
    found = []
    for index, tag in enumerate(tags):
        factor = _FACTORS.get(tag.name)
        if factor is None:
            continue
        own = tag.name == "local-grad-norm"
        if own and not ranks:
            continue
        steps, values = history.series(index, world_size)
        near = (steps <= step) & (steps > step - _LOOK_BACK)
        series = values[near, ranks[0]] if own else _middle(values[near])
        known = np.isfinite(series)
        cause = _moved(steps[near][known], series[known], tag.name, factor, ranks[0] if own else -1)
        if cause is not None:
            found.append(cause)
    return sorted(found, key=lambda cause: (not cause.moved, cause.since))


def _moved(
    steps: npt.NDArray[np.int64], series: Float64Array, tag: str, factor: float, rank: int
) -> Cause | None:
    if len(series) <= _STEPS_BEFORE:
        return None
    before = float(np.median(series[: max(_STEPS_BEFORE, len(series) // 2)]))
    size, usual = np.abs(series), abs(before)
    away = (size > factor * usual) | (size < usual / factor)
    if not away[-_LOOK_BACK // 2 :].any():
        return Cause(tag, rank, int(steps[-1]), before, float(series[-1]), moved=False)
    first = int(np.argmax(away))
    after = series[first:]
    extreme = after[np.argmax(np.abs(np.log(np.maximum(np.abs(after), 1e-300) / max(usual, 1e-300))))]
    return Cause(tag, rank, int(steps[first]), before, float(extreme), moved=True)


def _middle(values: Float64Array) -> Float64Array:
    """Return the median over ranks, NaN where no rank reported."""
    result = np.full(len(values), np.nan)
    for row, each in enumerate(values):
        finite = each[np.isfinite(each)]
        if len(finite):
            result[row] = np.median(finite)
    return result
