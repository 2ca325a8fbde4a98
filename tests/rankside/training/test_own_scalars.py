"""What a script logs by itself: one number a call, and its own where the monitor has a tag of that name, too."""

from __future__ import annotations

import logging

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import Callback, Model
from small_training import Witness, curve, network, samples, tags

from rankside import RankMonitor
from rankside.messages import Advice


def _train(*callbacks, steps=6):
    net = network()
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    model.train(1, samples(steps), callbacks=list(callbacks))


class Logs(Callback):
    """Logs at the end of each step what `make` returns for it."""

    def __init__(self, monitor, tag, make):
        super().__init__()
        self.monitor, self.tag, self.make = monitor, tag, make

    def on_train_step_end(self, run_context):
        self.monitor.log(self.tag, self.make(run_context.original_args()["cur_step_num"]))


@pytest.mark.parametrize("shape", [(2,), (2, 3), (0,)])
def test_a_tensor_that_is_not_one_number_is_left_out_and_told_once(run_dir, graph_mode, caplog, shape):
    witness, monitor = Witness(), RankMonitor(log_every=0)
    with caplog.at_level(logging.WARNING, "crossrank"):
        value = Tensor(np.ones(shape), mindspore.float32)
        _train(monitor, witness, Logs(monitor, "x", lambda _: value))
        monitor.close()
    assert "x" not in tags(run_dir)
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    (line,) = [r.message for r in caplog.records if "'x'" in r.message]
    assert f"a tensor of the shape {shape} was given, where one element is expected" in line


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_of_one_element_is_its_value(run_dir, graph_mode, shape):
    monitor = RankMonitor(log_every=0)
    _train(monitor, Logs(monitor, "x", lambda step: Tensor(np.full(shape, 0.5 * step), mindspore.float32)))
    monitor.close()
    assert curve(run_dir, "x") == {step: 0.5 * step for step in range(1, 7)}


@pytest.mark.parametrize("tag", ["loss", "grad-norm", "memory"])
@pytest.mark.parametrize("first", [True, False])
def test_what_the_script_logs_stands_where_the_monitor_has_that_tag_too(
    run_dir, graph_mode, caplog, tag, first
):
    monitor = RankMonitor(log_every=0)
    logs = Logs(monitor, tag, lambda step: 1000.0 + step)
    with caplog.at_level(logging.WARNING, "crossrank"):
        _train(*([logs, monitor] if first else [monitor, logs]))
        monitor.close()
    expected = {step: 1000.0 + step for step in range(1, 7)}
    assert curve(run_dir, tag) == expected
    assert [r.message for r in caplog.records if r.message.startswith(f"{tag} is what the script logs")]
    assert len([r for r in caplog.records if "what the script logs" in r.message]) == 1
    others = {"loss", "grad-norm", "memory"} - {tag}
    assert others <= tags(run_dir)


def test_steps_that_are_asked_for_are_reported_whole_in_a_sparse_schedule(run_dir, graph_mode):
    class Asks(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 6:
                advice = Advice(0, 0, dense_until=9, stacks=0, stop="", step=0, places=())
                monitor._record.recorder._shipper.adviser.follow(advice)

    monitor = RankMonitor(log_every=0, every=5)
    _train(monitor, Asks(), steps=15)
    monitor.close()
    # Costly figures are taken where a window ends only. Steps that wait to be written when it is asked for are
    # reported each, too.
    assert sorted(curve(run_dir, "memory")) == [1, 5, 7, 8, 9, 10, 15]
    assert set(curve(run_dir, "loss")) >= {1, 5, 7, 8, 9, 10, 15}
