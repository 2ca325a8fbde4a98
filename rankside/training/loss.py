"""Collects the loss of this rank's batch, before any reduction over ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, get_auto_parallel_context

from rankside.training.collector import Collector
from rankside.training.parallel_layout import returns_loss
from rankside.training.tensor_value import fetch_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rankside.training.collector import Draft, Training


class Loss(Collector):
    """Tag `loss`: the mean of what the train cell returned as its loss.

    Where mindformers' train cell adds up the losses of the micro batches of a pipeline or of accumulated gradients,
    it is their mean. Of pipeline stages, only the one that has the loss reports it. Where a dataset sink runs many
    steps at once, it is the loss of the last of them.
    """

    name = "loss"

    def __init__(self) -> None:
        self._is_there = True
        self._micro_batches = 1

    def train_begin(self, training: Training) -> None:
        """Learn whether this rank has the loss, and of how many micro batches."""
        self._is_there = returns_loss(training.rank, training.world_size)
        self._micro_batches = micro_batches(training.parameters.get("list_callback") or ())

    def step_end(self, draft: Draft) -> None:
        """Add the loss; a train cell that returns none adds nothing."""
        loss = draft.output.loss
        if loss is not None and self._is_there:
            if isinstance(loss, (Parameter, np.ndarray)):  # the next step overwrites it
                loss = loss.copy()
            draft.values["loss"] = partial(_mean, loss, self._micro_batches)


def micro_batches(callbacks: Iterable[Any]) -> int:
    """Return how many micro batches' losses the train cell adds up, as mindformers has told its own loss monitor."""
    for callback in callbacks:
        # The spelling is mindformers' own.
        if type(callback).__module__.startswith("mindformers.") and hasattr(callback, "mirco_size"):
            accumulated = getattr(callback, "gradient_accumulation_steps", 1)
            piped = callback.mirco_size if get_auto_parallel_context("pipeline_stages") > 1 else 1
            per_token = getattr(callback, "calculate_per_token_loss", False)
            added = 1 if per_token else accumulated * piped
            return int(added * getattr(callback, "micro_batch_interleave_num", 1))
    return 1


def _mean(loss: Any, parts: int) -> float:
    return fetch_mean(loss) / parts
