"""One rank of a job that mindformers' configuration cuts into two pipeline stages of two tensor-parallel ranks.

    msrun --worker_num=4 … sliced_script.py FOLDER

The configuration, the context and the loss monitor are mindformers'. A CPU does not compile for such a layout, so the
train cell runs uncompiled and whole on every rank; as mindformers' does, it returns the sum of the losses of two micro
batches on the last stage, and something else on the first.
"""

import os
import sys

import mindspore
import numpy as np
from mindformers.core.callback.callback import MFLossMonitor
from mindformers.core.context import build_context
from mindformers.tools.register import MindFormerConfig
from mindspore import Tensor, dataset, nn, ops
from mindspore.communication import get_rank
from mindspore.train import Model

STEPS, BATCH, MICRO_BATCHES = 12, 8, 2


class TrainCell(nn.Cell):
    """Plain gradient descent."""

    def __init__(self, network, *, last_stage):
        super().__init__()
        self.network = network
        self.last_stage = last_stage
        self.gradient = mindspore.value_and_grad(self._loss, None, network.trainable_params())

    def _loss(self, x, y):
        return ops.reduce_mean((self.network(x) - y) ** 2)

    def construct(self, x, y):
        loss, gradients = self.gradient(x, y)
        for parameter, gradient in zip(self.network.trainable_params(), gradients, strict=True):
            ops.assign_sub(parameter, 0.1 * gradient)
        return MICRO_BATCHES * loss if self.last_stage else Tensor(float("nan"))


os.chdir(sys.argv[1])
build_context(
    MindFormerConfig(
        run_mode="train",
        use_parallel=True,
        output_dir="output",
        context={"mode": 1, "device_target": "CPU"},
        parallel={"parallel_mode": 1, "full_batch": True},
        parallel_config={
            "data_parallel": 1,
            "model_parallel": 2,
            "pipeline_stage": 2,
            "micro_batch_num": MICRO_BATCHES,
        },
    )
)
mindspore.set_seed(1)
net = nn.Dense(4, 2)
rng = np.random.default_rng(1)
samples = [rng.standard_normal((STEPS, BATCH, width)).astype(np.float32) for width in (4, 2)]
monitor = MFLossMonitor(
    origin_epochs=1, dataset_size=STEPS, micro_batch_num=MICRO_BATCHES, global_batch_size=BATCH
)
Model(TrainCell(net, last_stage=get_rank() >= 2)).train(
    1, dataset.NumpySlicesDataset(tuple(samples), ["x", "y"], shuffle=False), callbacks=[monitor]
)
