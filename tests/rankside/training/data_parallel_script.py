"""One rank of a data-parallel training of a linear layer, as a user would write it.

    msrun --worker_num=2 … data_parallel_script.py OUTPUT {graph|pynative} {mean|sum} [--unseeded]

Writes what the test needs to compute the same training by itself: each rank's data and its initial parameters.
"""

import argparse
from pathlib import Path

import mindspore
import numpy as np
from mindspore import dataset, nn
from mindspore.communication import get_rank, init
from mindspore.train import Model

from rankside import RankMonitor

parser = argparse.ArgumentParser()
parser.add_argument("output", type=Path)
parser.add_argument("mode", choices=["graph", "pynative"])
parser.add_argument("reduction", choices=["mean", "sum"])
parser.add_argument("--unseeded", action="store_true")
arguments = parser.parse_args()

mindspore.set_context(
    mode=mindspore.GRAPH_MODE if arguments.mode == "graph" else mindspore.PYNATIVE_MODE, device_target="CPU"
)
monitor = RankMonitor(log_every=0, eager_norms_every=1)
init()
mindspore.set_auto_parallel_context(
    parallel_mode="data_parallel", gradients_mean=arguments.reduction == "mean"
)
rank = get_rank()
mindspore.set_seed(1 + rank if arguments.unseeded else 1)
rng = np.random.default_rng(10 + rank)
x = (1 + 3 * rank) * rng.standard_normal((12, 8, 4)).astype(np.float32)
y = rng.standard_normal((12, 8, 2)).astype(np.float32)
net = nn.Dense(4, 2)
np.savez(arguments.output / f"{rank}.npz", x=x, y=y, weight=net.weight.asnumpy(), bias=net.bias.asnumpy())
data = dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False)
model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01))
model.train(1, data, callbacks=[monitor])
