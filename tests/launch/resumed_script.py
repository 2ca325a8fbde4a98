"""One rank of a data-parallel training of a linear layer that is resumed by epochs, as a user would write it.

    msrun --worker_num=2 … resumed_script.py FOLDER SEED [--fail-at STEP] [--resume]

Three epochs of four steps; a checkpoint after each. Writes the data of the rank and its initial parameters.
"""

import argparse
from pathlib import Path

import mindspore
import numpy as np
from mindspore import dataset, nn
from mindspore.communication import get_rank, init
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("seed", type=int)
parser.add_argument("--fail-at", type=int)
parser.add_argument("--resume", action="store_true")
arguments = parser.parse_args()


class FailAt(Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args()["cur_step_num"] == arguments.fail_at:
            raise RuntimeError("failed as asked")


mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
init()
mindspore.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
mindspore.set_seed(1)
rank = get_rank()
rng = np.random.default_rng(arguments.seed + rank)
x = rng.standard_normal((4, 8, 4)).astype(np.float32)
y = rng.standard_normal((4, 8, 2)).astype(np.float32)
net = nn.Dense(4, 2)
kept = arguments.folder / f"rank_{rank}"
np.savez(f"{kept}_{arguments.seed}.npz", x=x, y=y, weight=net.weight.asnumpy(), bias=net.bias.asnumpy())
epochs_before = 0
if arguments.resume:
    newest = max(kept.glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    mindspore.load_checkpoint(str(newest), net)
    epochs_before = 1
model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
model.train(
    3,
    dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False),
    callbacks=[
        ModelCheckpoint(directory=str(kept), config=CheckpointConfig(save_checkpoint_steps=4)),
        FailAt(),
    ],
    initial_epoch=epochs_before,
)
