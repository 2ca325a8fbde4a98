"""Knows the learning rates of a schedule, computed many steps at a time: a thousand cost less than one by itself."""

from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, int32

from rankside.training.optimizer_rates import is_schedule

if TYPE_CHECKING:
    from rankside.training.collector import Training

_STEPS = 1024
_LOGGER = logging.getLogger("crossrank")


class RateTable:
    """The rates of a schedule cell by the optimizer's count of steps, `global_step`; four bytes a step.

    first: the count at which the training begins, at this step. length: steps of the training, beyond which a
    schedule that was made from a list of rates has none.

    Raises what the schedule raises where it takes one count only, as one that branches on it does, and ValueError
    where it does not return a rate a count.
    """

    def __init__(self, schedule: Any, *, first: int, step: int, length: int) -> None:
        self._schedule = schedule
        self._first = first
        self._step = step
        self._length = length
        self._rates = array("f")
        self.reach(step + 1)
        counts = [first, first + len(self._rates) - 1]
        alone = [schedule.construct(Tensor([count], int32)).reshape(()).asnumpy() for count in counts]
        if not np.allclose([self.at(count) for count in counts], alone, atol=0.0):
            raise ValueError("the schedule returns other rates for many counts than for one")

    @property
    def last(self) -> int:
        """The count at the last step of the training."""
        return self._first + self._length - 1

    def reach(self, step: int) -> None:
        """Know the rates up to this step of the training; on the training thread, since it runs the schedule."""
        wanted = step - self._step  # or fewer: a step that overflows is not counted by the optimizer
        while (known := len(self._rates)) < wanted:
            count = max(wanted - known, min(_STEPS, self._length - known))
            start = self._first + known
            # Not by way of the cell's call, which in graph mode would compile it anew for each number of counts.
            rates = self._schedule.construct(Tensor(np.arange(start, start + count), int32)).asnumpy()
            if rates.shape != (count,):
                raise ValueError(f"the schedule returned the shape {rates.shape} for {count} counts")
            self._rates.extend(rates.tolist())

    def at(self, count: int) -> float:
        """Return the rate at this count of the optimizer. Raises LookupError where the table does not reach there."""
        if count < self._first:
            raise LookupError(f"no learning rate is known at {count}: the table begins at {self._first}")
        return self._rates[count - self._first]


def table_of(rate: Any, training: Training) -> RateTable | None:
    """Return the table of an optimizer's rate; None for a parameter, and for a schedule that takes one count only.

    A schedule that is not MindSpore's is taken for such a one: to try it would leave the compiler's report of the
    failure in the user's folder.
    """
    length = training.parameters.get("epoch_num", 0) * training.parameters.get("batch_num", 0)
    if not is_schedule(rate) or not type(rate).__module__.startswith("mindspore.nn.") or length <= 0:
        return None
    first = int(training.optimizer.global_step.asnumpy()[0])
    try:
        return RateTable(rate, first=first, step=training.base + training.counted, length=length)
    except Exception as error:  # noqa: BLE001 (a schedule may be anything; it is asked step by step then)
        _LOGGER.debug("the learning rate's schedule is asked at each step: %s", error)
        return None
