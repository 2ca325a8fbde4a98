"""The training script of the demo: a small classifier, data parallel, that msrun starts once a rank.

Each rank draws its own data; all start from the same parameters and average their gradients. From step
`--damaged-from` on, the rank `--damaged-rank` alone shrinks its parameters before every step, as a misplaced
line in a training script might: nothing fails, the gradients stay finite and are averaged as before, and only
this rank's own loss tells.
"""

from __future__ import annotations

import argparse
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.train import Callback, Model

from rankside import RankMonitor

_FEATURES = 16
_CLASSES = 4
_BATCH = 256
_SHRINK = 0.9


class Samples:
    """Points labelled by a noisy linear rule; the rule is the same on all ranks, the points differ."""

    def __init__(self, count: int, rank: int) -> None:
        """count: number of samples. rank: seeds this rank's own points."""
        rule = np.random.default_rng(7).normal(size=(_FEATURES, _CLASSES))
        own = np.random.default_rng((7, rank))
        self._points = own.normal(size=(count, _FEATURES)).astype(np.float32)
        scores = self._points @ rule + own.gumbel(size=(count, _CLASSES))
        self._labels = np.argmax(scores, axis=1).astype(np.int32)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._points[index], self._labels[index]


class ShrinkParameters(Callback):  # type: ignore[misc]
    """The bug: multiplies this rank's parameters by a little less than one before each step."""

    def __init__(self, parameters: list[Any], first_step: int) -> None:
        """parameters: of the network. first_step: the first step that uses damaged ones."""
        self._parameters = parameters
        self._first_step = first_step

    def on_train_step_begin(self, run_context: Any) -> None:
        """Damage the parameters that the coming step uses."""
        if run_context.original_args().cur_step_num >= self._first_step:
            for parameter in self._parameters:
                parameter.set_data(ms.Tensor(parameter.asnumpy() * np.float32(_SHRINK)))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--damaged-rank", type=int)
    parser.add_argument("--damaged-from", type=int, default=1)
    options = parser.parse_args()

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    init()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    ms.set_seed(1)
    rank = get_rank()
    samples = Samples(options.steps * _BATCH, rank)
    dataset = ms.dataset.GeneratorDataset(samples, ["points", "labels"], shuffle=False).batch(_BATCH)
    network = nn.SequentialCell(nn.Dense(_FEATURES, 32), nn.ReLU(), nn.Dense(32, _CLASSES))
    model = Model(
        network,
        nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        nn.Momentum(network.trainable_params(), learning_rate=0.05, momentum=0.9),
    )
    callbacks = [RankMonitor()]
    if rank == options.damaged_rank:
        callbacks.append(ShrinkParameters(network.trainable_params(), options.damaged_from))
    model.train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)


if __name__ == "__main__":
    main()
