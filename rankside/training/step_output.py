"""Tells apart the many things that train cells return."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor

from rankside.training.tensor_value import is_tensor


class StepOutput(NamedTuple):
    """What a train cell said about a step; None where it says nothing.

    loss: this rank's loss. overflow: whether the step overflowed. next_scale: the next step's loss scale.
    learning_rate: the rate of this step. norm: the norm of the reduced gradients. local_norms: mindformers'
    squared norms of this rank's gradients before the reduction, one a parameter.
    """

    loss: Any = None
    overflow: Any = None
    next_scale: Any = None
    learning_rate: Any = None
    norm: Any = None
    local_norms: Any = None


def read_output(outputs: Any) -> StepOutput:
    """Return what is what in a train cell's return value.

    MindSpore's cells return a loss, or (loss, overflow, scale); mindformers' (loss, overflow, scale, learning
    rate, global norm), and then (local norms, sizes) where it was asked for local norms. The overflow flag
    is the mark of both tuples, since a cell of the user may return a tuple of anything: of others, and of
    lists, the first number or tensor is taken as the loss, at whatever depth; of a dict, `loss`, or else the same.
    """
    if isinstance(outputs, Tensor):
        return StepOutput(outputs)
    if isinstance(outputs, (tuple, list)) and len(outputs) >= 3 and _is_flag(outputs[1]):
        loss, overflow, scale, *more = outputs
        rate, norm, local_norms = (*more, None, None, None)[:3]
        return StepOutput(_loss_in(loss), overflow, scale, rate, norm, local_norms)
    return StepOutput(loss=_loss_in(outputs))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) == "Bool"


def _loss_in(value: Any) -> Any:
    if is_tensor(value) or isinstance(value, (int, float, np.ndarray, np.generic)):
        return value
    if isinstance(value, dict):
        value = value.values() if value.get("loss") is None else (value["loss"],)
    elif not isinstance(value, (tuple, list)):
        return None
    return next((loss for loss in map(_loss_in, value) if loss is not None), None)
