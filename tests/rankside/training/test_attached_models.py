"""A process can be recorded without a change to its script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mindspore import nn
from mindspore.train import Model
from small_training import curve, network, samples

from rankside import RankMonitor
from rankside.training.attach import attach

SCRIPT = """
import mindspore
from mindspore import nn
from mindspore.train import MAE, LossMonitor, Model
from small_training import network, samples

mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
net = network()
model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), metrics={"mae": MAE()})
model.train(1, samples(3))
model.train(1, samples(3), LossMonitor())
model.fit(1, samples(3), samples(2), callbacks=[LossMonitor()])
print(model.eval(samples(2)))
"""


def test_every_training_and_evaluation_of_an_unchanged_script_is_recorded(run_dir):
    before = "from rankside.training.attach import attach; attach(); attach()"
    paths = [str(Path(__file__).parent), *sys.path]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}\n{before}\n{SCRIPT}"],
        check=True,
        timeout=100,
    )
    assert sorted(curve(run_dir, "loss")) == list(range(1, 10))
    assert sorted(curve(run_dir, "eval/loss")) == [9]
    assert sorted(curve(run_dir, "grad-norm")) == list(range(1, 10))


def test_a_list_with_a_monitor_of_its_own_is_left_as_it_is(run_dir, graph_mode, monkeypatch):
    for name in ("train", "fit", "eval"):
        monkeypatch.setattr(Model, name, getattr(Model, name))
    attach()
    net = network()
    monitor = RankMonitor(log_every=0)
    Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1)).train(1, samples(4), callbacks=monitor)
    assert monitor._record is not None
    monitor.close()
    assert sorted(curve(run_dir, "loss")) == [1, 2, 3, 4]


def test_a_call_that_misses_arguments_fails_as_it_would_without_us(graph_mode, monkeypatch):
    for name in ("train", "fit", "eval"):
        monkeypatch.setattr(Model, name, getattr(Model, name))
    attach()
    with pytest.raises(TypeError, match="train_dataset"):
        Model(network(), nn.MSELoss()).train(1)
