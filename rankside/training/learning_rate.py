"""Collects the learning rate that a step used; at the step's end, the optimizer already tells the next one's.

In order of preference: what the gradient probe noted inside the step, what mindformers' train cell returned,
and what the optimizer says before the step. The last evaluates a schedule on the training thread (about half
a millisecond on a CPU), and so does it only at steps that report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankside.training.collector import Collector
from rankside.training.optimizer_rates import distinct_rates, rate_tags
from rankside.training.tensor_value import fetch_mean, later

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankside.tags import Tag
    from rankside.training.collector import Draft, Training
    from rankside.training.gradient_probe import GradientProbe


class LearningRate(Collector):
    """Tag `learning-rate`, or `learning-rate/group_0`, ... where parameter groups have rates of their own."""

    name = "learning-rate"

    def __init__(self, reports: Callable[[int], bool], probe: GradientProbe | None = None) -> None:
        self._reports = reports
        self._probe = probe
        self._optimizer: Any = None
        self._rates: list[Any] = []
        self._tags: Sequence[Tag] = ()
        self._before_step: list[float | Callable[[], float]] = []
        self._returned = False

    def train_begin(self, training: Training) -> None:
        """Find the rates of the optimizer's parameter groups."""
        self._optimizer = training.optimizer
        self._rates = distinct_rates(self._optimizer)
        self._tags = rate_tags(len(self._rates))
        self._returned = False
        training.recorder.describe(*self._tags)

    def step_begin(self, step: int) -> None:
        """Ask the optimizer, where nobody else will tell."""
        self._before_step = []
        if self._returned or (self._probe and self._probe.notes_learning_rate) or not self._reports(step):
            return
        for rate in self._rates:
            if callable(rate) and hasattr(rate, "construct"):
                self._before_step.append(later(rate(self._optimizer.global_step).reshape(())))
            else:
                # A callback of the user may assign to it while the background thread is still behind.
                self._before_step.append(fetch_mean(rate))

    def step_end(self, draft: Draft) -> None:
        """Add the rate or rates."""
        if self._probe and self._probe.notes_learning_rate:
            return
        returned = draft.output.learning_rate
        self._returned = returned is not None and len(self._rates) <= 1
        if self._returned:
            draft.values["learning-rate"] = later(returned)
            return
        for tag, rate in zip(self._tags, self._before_step, strict=False):
            draft.values[tag.name] = rate
