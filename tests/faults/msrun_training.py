"""A data-parallel training that msrun starts once a rank, with steps that take a while."""

from __future__ import annotations

import argparse
import time

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.train import Callback, Model

from rankside import RankMonitor


class Samples:
    """So many batches of this rank's own, each of which takes its time."""

    def __init__(self, count, rank, seconds):
        self._count = count
        self._seconds = seconds
        self._chance = np.random.default_rng(rank)

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        time.sleep(self._seconds)
        batch = self._chance.normal(size=(8, 5)).astype(np.float32)
        return batch[:, :4], batch[:, 4:]


class Failure(Callback):
    """Raises at the end of a step on one rank."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_step_end(self, run_context):
        if run_context.original_args()["cur_step_num"] == self._step:
            raise ValueError("a batch that cannot be used")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--failing-rank", type=int)
    parser.add_argument("--failing-step", type=int, default=30)
    options = parser.parse_args()
    init()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    ms.set_seed(1)
    samples = Samples(options.until - options.after, get_rank(), options.seconds)
    data = ms.dataset.GeneratorDataset(samples, ["x", "y"], shuffle=False)
    net = nn.Dense(4, 1)
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))
    callbacks = [RankMonitor(initial_step=options.after)]
    if get_rank() == options.failing_rank:
        callbacks.append(Failure(options.failing_step))
    model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)


if __name__ == "__main__":
    main()
