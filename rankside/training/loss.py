"""Collects the loss of this rank's batch, before any reduction over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankside.training.collector import Collector
from rankside.training.tensor_value import later

if TYPE_CHECKING:
    from rankside.training.collector import Draft


class Loss(Collector):
    """Tag `loss`: the mean of what the train cell returned as its loss.

    Where a dataset sink runs many steps at once, it is the loss of the last of them.
    """

    name = "loss"

    def step_end(self, draft: Draft) -> None:
        """Add the loss; a train cell that returns none adds nothing."""
        loss = draft.output.loss
        if loss is not None:
            draft.values["loss"] = later(loss)
