"""A small data-parallel training with a bug on request: `--bug KIND:RANK:STEP`, as often as wanted.

The bugs are such as users make; nothing of crossrank takes part in them. From STEP on, RANK

    shrink     multiplies its parameters by a little less than one before every step
    shuffle    is given labels that belong to other points
    rate       uses three times the learning rate of the others
    sleep      sleeps before each step
    nan        is given a point that is not a number, at this step only
    block      waits in its data loader until the file `--go-on` is there, at this step only
    kill       is killed, as by the kernel when memory runs out

`--unseeded` leaves out the seed of the initialisation. Without a bug all ranks begin with the same parameters
and differ by their data only.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.train import Callback, Model

from rankside import RankMonitor

FEATURES = 16
CLASSES = 4
BATCH = 128
RATE = 0.05
SLEEP_SECONDS = 0.006


class Bug(NamedTuple):
    """What is wrong, on which rank, from which step on."""

    kind: str
    rank: int
    step: int

    @classmethod
    def parse(cls, text: str) -> Bug:
        kind, rank, step = text.split(":")
        return cls(kind, int(rank), int(step))


class Batches:
    """Points labelled by a noisy linear rule, a batch a step; the rule is the same on all ranks."""

    def __init__(self, steps: int, rank: int, bugs: dict[str, int], go_on: Path | None) -> None:
        """bugs: of this rank: from kind to step."""
        self._steps = steps
        self._rank = rank
        self._bugs = bugs
        self._go_on = go_on
        self._rule = np.random.default_rng(7).normal(size=(FEATURES, CLASSES))

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        step = int(index) + 1
        own = np.random.default_rng((7, self._rank, step))
        points = own.normal(size=(BATCH, FEATURES)).astype(np.float32)
        labels = np.argmax(points @ self._rule + own.gumbel(size=(BATCH, CLASSES)), axis=1).astype(np.int32)
        if step >= self._bugs.get("shuffle", self._steps + 1):
            own.shuffle(labels)
        if step == self._bugs.get("nan"):
            points[0, 0] = np.nan
        while step == self._bugs.get("block") and self._go_on is not None and not self._go_on.exists():
            time.sleep(0.1)
        return points, labels


class Misdeeds(Callback):
    """The bugs outside of the data loader."""

    def __init__(self, parameters: list[Any], bugs: dict[str, int]) -> None:
        self._parameters = parameters
        self._bugs = bugs

    def on_train_step_begin(self, run_context: Any) -> None:
        step = run_context.original_args().cur_step_num
        bugs = {kind for kind, first_step in self._bugs.items() if step >= first_step}
        if "shrink" in bugs:
            for parameter in self._parameters:
                parameter.set_data(ms.Tensor(parameter.asnumpy() * np.float32(0.9)))
        if "sleep" in bugs:
            time.sleep(SLEEP_SECONDS)
        if "kill" in bugs:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--unseeded", action="store_true")
    parser.add_argument("--bug", type=Bug.parse, action="append", default=[])
    parser.add_argument("--go-on", type=Path)
    options = parser.parse_args()

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    init()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    if not options.unseeded:
        ms.set_seed(1)
    rank = get_rank()
    bugs = {bug.kind: bug.step for bug in options.bug if bug.rank == rank}
    rates = [
        RATE * (3 if step >= bugs.get("rate", options.steps + 1) else 1)
        for step in range(1, options.steps + 1)
    ]
    batches = Batches(options.steps, rank, bugs, options.go_on)
    dataset = ms.dataset.GeneratorDataset(
        batches, ["points", "labels"], shuffle=False, python_multiprocessing=False
    )
    network = nn.SequentialCell(nn.Dense(FEATURES, 32), nn.Tanh(), nn.Dense(32, CLASSES))
    model = Model(
        network,
        nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        nn.Momentum(network.trainable_params(), learning_rate=rates, momentum=0.9),
    )
    callbacks = [RankMonitor(), Misdeeds(network.trainable_params(), bugs)]
    model.train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)


if __name__ == "__main__":
    main()
