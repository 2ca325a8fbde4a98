"""Collects the learning rate that a step used; at the step's end, the optimizer already tells the next one's.

In order of preference: what the gradient probe noted inside the step, what mindformers' train cell returned,
and what the optimizer holds before the step. A schedule is then asked for many steps at once; one that takes a
single count only is asked at each step that reports, on the training thread (about a millisecond on a CPU).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rankside.training.collector import Collector
from rankside.training.optimizer_rates import distinct_rates, is_schedule, rate_tags
from rankside.training.rate_table import RateTable, table_of
from rankside.training.tensor_value import fetch_mean, later, snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankside.tags import Tag
    from rankside.training.collector import Draft, Training
    from rankside.training.gradient_probe import GradientProbe


class LearningRate(Collector):
    """Tag `learning-rate`, or `learning-rate/group_0`, ... where parameter groups have rates of their own."""

    name = "learning-rate"

    def __init__(self, reports: Callable[[int], bool], probe: GradientProbe) -> None:
        self._reports = reports
        self._probe = probe
        self._rates: list[Any] = []
        self._tables: list[RateTable | None] = []
        self._tags: Sequence[Tag] = ()
        self._global_step: Any = None
        self._step = 0
        self._before_step: list[float | Callable[[], float]] = []
        self._returned = False

    def train_begin(self, training: Training) -> None:
        """Find the rates of the optimizer's parameter groups."""
        self._rates = distinct_rates(training.optimizer)
        self._tags = rate_tags(len(self._rates))
        self._global_step = getattr(training.optimizer, "global_step", None)
        self._snapshot = snapshots()
        self._step = training.base + training.counted
        self._returned = False
        if not self._probe.notes_learning_rate:
            self._tables = [table_of(rate, training) for rate in self._rates]
        training.recorder.describe(*self._tags)

    @property
    def serves(self) -> bool:
        """Whether the probe does not tell."""
        return not self._probe.notes_learning_rate

    def step_entered(self, step: int) -> None:
        """Ask the optimizer, where nobody else will tell."""
        steps, self._step = step - self._step, step
        self._before_step = []
        if not self._returned and self._reports(step):
            rates = zip(self._rates, self._tables, strict=True)
            self._before_step = [self._ask(rate, table, steps) for rate, table in rates]

    def step_end(self, draft: Draft) -> None:
        """Add the rate or rates; of a dataset sink, those of its last step."""
        returned = draft.output.learning_rate
        self._returned = returned is not None and len(self._rates) <= 1
        if self._returned:
            draft.values["learning-rate"] = later(returned)
            return
        for tag, rate in zip(self._tags, self._before_step, strict=False):
            draft.values[tag.name] = rate

    def _ask(self, rate: Any, table: RateTable | None, steps: int) -> float | Callable[[], float]:
        if table is not None:
            table.reach(self._step)
            return partial(_look_up, table, self._snapshot(self._global_step), steps)
        # Of a parameter a copy: a callback of the user may assign to it while the background thread is behind.
        return later(rate(self._global_step).reshape(()) if is_schedule(rate) else self._snapshot(rate))


def _look_up(table: RateTable, begun: Any, steps: int) -> float:
    return table.at(int(fetch_mean(begun)) + steps - 1)
