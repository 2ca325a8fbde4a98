"""Real trainings on CPU, and TensorBoard's own reader for what they leave behind."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import mindspore
import numpy as np
from mindspore import dataset, nn
from mindspore.train import Callback, RunContext
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if TYPE_CHECKING:
    from pathlib import Path


def reader(run_dir: Path, *, rank: int = 0) -> EventAccumulator:
    """Return TensorBoard's reader of a rank's folder, with everything read."""
    events = EventAccumulator(str(run_dir / f"rank_{rank}"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def curve(run_dir: Path, tag: str, *, rank: int = 0) -> dict[int, float]:
    """Return the values of a tag by step; a step that occurs twice fails."""
    events = reader(run_dir, rank=rank)
    if tag not in events.Tags()["scalars"]:
        return {}
    points = [(event.step, event.value) for event in events.Scalars(tag)]
    assert len({step for step, _ in points}) == len(points), f"{tag} has a step twice"
    return dict(points)


def tags(run_dir: Path, *, rank: int = 0) -> set[str]:
    return set(reader(run_dir, rank=rank).Tags()["scalars"])


def network(*, width: int = 8, seed: int = 1) -> nn.Cell:
    """A small perceptron: 4 features to 2."""
    mindspore.set_seed(seed)
    return nn.SequentialCell(nn.Dense(4, width), nn.Tanh(), nn.Dense(width, 2))


def samples(steps: int, *, batch: int = 8, seed: int = 0) -> dataset.Dataset:
    """A dataset of so many batches, in the same order in every epoch."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((steps * batch, 4)).astype(np.float32)
    y = rng.standard_normal((steps * batch, 2)).astype(np.float32)
    return dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False).batch(batch)


def train_in_sinks(cell, callbacks, *, sink_size, sinks):
    """Train so many sinks: a CPU has no dataset sink, so the train cell runs several times between step ends."""
    parameters = {"train_network": cell, "optimizer": cell.optimizer, "cur_step_num": 0}
    parameters |= {"batch_num": sink_size, "epoch_num": sinks, "list_callback": callbacks}
    context = RunContext(parameters)
    batches = samples(sink_size * sinks).create_tuple_iterator()
    with contextlib.ExitStack() as stack:
        for callback in callbacks:
            stack.enter_context(callback)
            callback.on_train_begin(context)
        for callback in callbacks:
            callback.on_train_epoch_begin(context)
        for sink in range(1, sinks + 1):
            parameters["cur_step_num"] = sink * sink_size
            for callback in callbacks:
                callback.on_train_step_begin(context)
            for batch in itertools.islice(batches, sink_size):
                parameters["net_outputs"] = cell(*batch)
            for callback in callbacks:
                callback.on_train_step_end(context)
        for callback in callbacks:
            callback.on_train_end(context)


class Witness(Callback):
    """Notes what the train cell returns, at once and on the training thread."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = []

    def on_train_step_end(self, run_context):
        self.outputs.append(_copy(run_context.original_args()["net_outputs"]))

    @property
    def losses(self) -> dict[int, float]:
        losses = (output[0] if isinstance(output, tuple) else output for output in self.outputs)
        return {step: float(np.mean(loss)) for step, loss in zip(itertools.count(1), losses)}


def _copy(value):
    if isinstance(value, (tuple, list)):
        return tuple(_copy(item) for item in value)
    return np.array(value.asnumpy()) if hasattr(value, "asnumpy") else value


class FiniteCheckedCell(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's train cell with loss scaling; of its overflow checks, the one whose kernels a CPU has."""

    def __init__(self, net, optimizer, scale_sense):
        super().__init__(net, optimizer, scale_sense)
        self.ascend_910b_target = True
        self.enable_allfinite = False
