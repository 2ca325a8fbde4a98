"""What the aggregator may ask of a training: an orderly stop, only where the user has switched that on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

_SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn
from rankside import RankMonitor

class Samples:
    def __len__(self): return 2000
    def __getitem__(self, i):
        return np.full(4, np.nan if i == 20 else 1.0, np.float32), np.ones(1, np.float32)

class Slow(ms.train.Callback):
    def on_train_step_end(self, run_context):
        import time; time.sleep(0.02)
        self.last = run_context.original_args().cur_step_num

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
net = nn.Dense(4, 1)
slow = Slow()
model = ms.train.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01))
model.train(1, ms.dataset.GeneratorDataset(Samples(), ["x", "y"], shuffle=False).batch(1),
            callbacks=[RankMonitor(), slow], dataset_sink_mode=False)
print("trained until", slow.last)
"""


@pytest.mark.parametrize("wanted", [True, False])
def test_training_stops_after_a_loss_that_is_not_finite_only_where_it_was_asked_to(tmp_path, wanted):
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.replace("2000", "1500" if wanted else "120"))
    options = ["--stop-on-nonfinite"] if wanted else []
    crossrank = Path(sys.executable).with_name("crossrank")
    command = [crossrank, "run", "--logdir", tmp_path / "runs", *options, "--", sys.executable, script]
    environment = {name: v for name, v in os.environ.items() if not name.startswith(("CROSSRANK_", "MS_"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    last = int(done.stdout.split("trained until ")[1].split()[0])
    assert (21 <= last < 1500) if wanted else last == 120
    (findings,) = (tmp_path / "runs").glob("*/findings.jsonl")
    first = json.loads(findings.read_text().splitlines()[0])
    assert (first["kind"], first["tag"], first["first_step"], first["ranks"]) == (
        "nonfinite",
        "loss",
        21,
        [0],
    )
