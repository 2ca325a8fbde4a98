"""Collects the gradient norms that mindformers' train cell returns, where the gradient probe cannot be."""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from rankside.training.collector import Collector
from rankside.training.tensor_value import later

if TYPE_CHECKING:
    from rankside.training.collector import Draft
    from rankside.training.gradient_probe import GradientProbe


class ReturnedNorms(Collector):
    """Tag `grad-norm`, with `use_clip_grad`, and `local-grad-norm`, with `local_norm`, both of mindformers.

    Of a pipeline, or where mindformers accumulates gradients over micro batches, it takes the local norms while the
    loss scale is still in them.
    """

    name = "returned norms"

    def __init__(self, probe: GradientProbe) -> None:
        self._probe = probe

    @property
    def serves(self) -> bool:
        """Whether the probe does not know the norms."""
        return not self._probe.notes_norms

    def step_end(self, draft: Draft) -> None:
        """Add what the train cell returned."""
        if draft.output.norm is not None:
            draft.values["grad-norm"] = later(draft.output.norm)
        if draft.output.local_norms is not None:
            draft.values["local-grad-norm"] = partial(_root_of_sum, draft.output.local_norms)


def _root_of_sum(squares: Any) -> float:
    return sqrt(float(np.asarray(squares.asnumpy(), np.float64).sum()))
