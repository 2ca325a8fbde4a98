"""Collects the loss scale that a step used, and whether the step overflowed.

A train cell returns the scale as it is after the step: on an overflow, already the next step's. The scale of
a step is therefore what the cell returned at the end of the step before, and, for the first step, what the
cell's parameter held before it. Where the gradient probe is in place, it notes the scale inside the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import Parameter

from rankside.tags import Tag, TagKind
from rankside.training.collector import Collector
from rankside.training.tensor_value import fetch_mean, later

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankside.training.collector import Draft, Training
    from rankside.training.gradient_probe import GradientProbe

OVERFLOW_COUNT = Tag("overflow-count", TagKind.REPLICATED, "", "steps that overflowed so far")


class LossScale(Collector):
    """Tags `loss-scale`, `overflow` and `overflow-count`; the last two only where the train cell checks for it."""

    name = "loss-scale"

    def __init__(self, probe: GradientProbe) -> None:
        self._probe = probe
        self._scale: float | Callable[[], float] | None = None
        self._overflows = 0
        self._described = False

    def train_begin(self, training: Training) -> None:
        """Note the scale that the first step will use."""
        parameter = getattr(training.network, "scale_sense", None)
        static = getattr(training.network, "sens", None)
        if parameter is not None:
            self._scale = fetch_mean(parameter)
        elif getattr(training.network, "sense_flag", False) and isinstance(static, (int, float)):
            self._scale = float(static)
        else:
            self._scale = None
        if not self._described:
            training.recorder.describe(OVERFLOW_COUNT)
            self._described = True

    def step_end(self, draft: Draft) -> None:
        """Add what this step used, and keep what the next one will use."""
        output = draft.output
        if self._scale is not None and not self._probe.notes_loss_scale:
            draft.values["loss-scale"] = self._scale
        if output.next_scale is not None:
            self._scale = _kept(output.next_scale)
        if output.overflow is not None:
            draft.deferred.append(self._count(output.overflow))

    def _count(self, overflow: Any) -> Callable[[], Mapping[str, float]]:
        def count() -> Mapping[str, float]:
            overflowed = fetch_mean(overflow) != 0.0
            self._overflows += overflowed
            return {"overflow": float(overflowed), OVERFLOW_COUNT.name: float(self._overflows)}

        return count


def _kept(scale: Any) -> float | Callable[[], float]:
    # In PyNative mode this is the cell's own parameter, which the next step overwrites. Reading it adds no
    # wait: the cell has just branched on the overflow flag, on the host.
    return fetch_mean(scale) if isinstance(scale, Parameter) else later(scale)
