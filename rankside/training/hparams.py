"""Records hyper-parameters for TensorBoard's HParams page: what the training tells by itself, and the user's own.

Only rank 0 records them, once for each training.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankside.training.collector import Training

    HyperParameter = bool | int | float | str


class HyperParameters(Collector):
    """Hyper-parameters of a training, by name.

    given: the user's own, which win over those found. They are found in the callback parameters: epochs, batches
    an epoch, batch size, world size, parallel mode, train cell, optimizer and its constant settings.
    """

    name = "hyper-parameters"

    def __init__(self, given: Mapping[str, HyperParameter]) -> None:
        self._given = dict(given)

    def train_begin(self, training: Training) -> None:
        """Collect them, and leave the writing to the background thread."""
        if training.rank != 0:
            return
        values = {**found(training), **self._given}
        training.recorder.record(training.base + training.counted, partial(_summaries, values))


def found(training: Training) -> dict[str, HyperParameter]:
    """Return the hyper-parameters that a training tells by itself."""
    parameters, optimizer = training.parameters, training.optimizer
    values: dict[str, Any] = {
        "epochs": parameters.get("epoch_num"),
        "batches_per_epoch": parameters.get("batch_num"),
        "world_size": training.world_size,
        "parallel_mode": parameters.get("parallel_mode"),
        "train_cell": type(training.network).__name__,
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "batch_size": _call(parameters.get("train_dataset"), "get_batch_size"),
        "learning_rate": _number(getattr(optimizer, "learning_rate", None)),
        "weight_decay": _number(getattr(optimizer, "weight_decay", None)),
        "momentum": _number(getattr(optimizer, "momentum", None)),
        "beta1": _number(getattr(optimizer, "beta1", None)),
        "beta2": _number(getattr(optimizer, "beta2", None)),
        "epsilon": _number(getattr(optimizer, "eps", None)),
        "loss_scale": _number(getattr(training.network, "scale_sense", None)),
    }
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str))}


def _call(owner: Any, method: str) -> Any:
    return getattr(owner, method)() if hasattr(owner, method) else None


def _number(value: Any) -> Any:
    # A schedule, or a setting for each parameter group, is not one number.
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):
        return float(value.item())
    return value if isinstance(value, (bool, int, float)) else None


def _summaries(values: Mapping[str, HyperParameter]) -> Iterable[bytes]:
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # noqa: PLC0415 (heavy; background thread)

    return [value.SerializeToString() for value in hparams_pb(dict(values)).value]
