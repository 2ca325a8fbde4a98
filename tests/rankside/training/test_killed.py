"""A rank that is killed keeps what it had recorded up to the flush interval, and ends as it would have without us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_training import curve

SCRIPT = """
import ctypes
import mindspore
from mindspore import nn
from mindspore.train import Callback, Model
from small_training import network, samples
from rankside import RankMonitor

class Stop(Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args()["cur_step_num"] == 5:
            STOP

mindspore.set_context(mode=mindspore.GRAPH_MODE)
net = network()
model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
model.train(1, samples(8), callbacks=[RankMonitor(log_every=0), Stop()])
"""

# Waits where no signal handler of Python's can run, as in a collective.
BLOCK = """
            mutex = ctypes.create_string_buffer(256)
            lock = ctypes.CDLL(None).pthread_mutex_lock
            lock(mutex)
            print("READY", flush=True)
            lock(mutex)
"""


def _recorded(run_dir):
    return sorted(curve(run_dir, "loss")) if (run_dir / "rank_0").exists() else []


def _start(stop):
    program = f"import sys; sys.path[:] = {[str(Path(__file__).parent), *sys.path]!r}\n" + SCRIPT.replace(
        "STOP", stop
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_rank_that_waits_outside_of_python_dies_at_once_and_keeps_its_steps(run_dir, within, number):
    with _start(BLOCK) as process:
        assert any("READY" in line for line in iter(process.stdout.readline, ""))
        within(lambda: _recorded(run_dir) == [1, 2, 3, 4, 5])
        os.kill(process.pid, number)
        assert process.wait(30) == -number
    assert _recorded(run_dir) == [1, 2, 3, 4, 5]
