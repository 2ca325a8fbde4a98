"""A small real training, taken in turns with others of its kind, so that what the machine does hits all alike."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import mindspore
import numpy as np
from mindspore import dataset, nn
from mindspore.train import Callback, Model

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

WARM_UP_STEPS = 8
BATCHES = 8  # distinct ones, repeated


def add_size(parser: argparse.ArgumentParser, *, rounds: int, steps: int, batch: int, width: int) -> None:
    """Add the options for how much is trained."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--steps", type=int, default=steps, help="measured steps in a turn")
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--width", type=int, default=width)


class Material:
    """What trainees share: one network with its optimizer, and the samples.

    A network that is trained alike but lies elsewhere in memory is faster or slower by more than a monitor costs.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        mindspore.set_seed(1)
        width, steps = arguments.width, arguments.steps + WARM_UP_STEPS + 1
        self.net = nn.SequentialCell(
            nn.Dense(16, width), nn.ReLU(), nn.Dense(width, width), nn.ReLU(), nn.Dense(width, 4)
        )
        rng = np.random.default_rng(0)
        x = rng.standard_normal((BATCHES, arguments.batch, 16)).astype(np.float32)
        y = rng.standard_normal((BATCHES, arguments.batch, 4)).astype(np.float32)
        order = np.arange(steps) % BATCHES
        self._samples = {"x": x[order], "y": y[order]}
        schedule = nn.CosineDecayLR(0.0, 1e-3, 100_000)
        self.optimizer = nn.Momentum(self.net.trainable_params(), schedule, 0.9)

    def dataset(self) -> dataset.Dataset:
        """Return a dataset of the samples; MindSpore wants one of its own for each model."""
        return dataset.NumpySlicesDataset(self._samples, shuffle=False)


class Trainee:
    """A train cell of its own, compiled by itself, trained a turn at a time.

    callbacks: returns those of the next turn. turns: mean and median step of each turn, in ms.
    """

    def __init__(self, callbacks: Callable[[], Sequence[Callback]], material: Material) -> None:
        self.turns = []
        self._callbacks = callbacks
        self._data = material.dataset()
        self._model = Model(material.net, nn.MSELoss(), material.optimizer)

    def train(self) -> None:
        """Take one turn."""
        clock = _Clock()
        self._model.train(1, self._data, callbacks=[*self._callbacks(), clock])
        steps_ms = 1e3 * np.diff(clock.ends[WARM_UP_STEPS:])
        self.turns.append((steps_ms.mean(), np.median(steps_ms)))


def take_turns(trainees: Mapping[object, Trainee], *, rounds: int) -> None:
    """Have each take a turn in every round, in an order drawn anew; the first, which compiles, does not count."""
    for trainee in trainees.values():
        trainee.train()
        trainee.turns.clear()
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for index in rng.permutation(len(trainees)):
            list(trainees.values())[index].train()


class _Clock(Callback):
    """Notes when steps end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = []

    def on_train_step_end(self, run_context):  # noqa: ARG002
        self.ends.append(perf_counter())
