"""The terminal shows a line every so many steps, with the numbers of that step."""

from __future__ import annotations

import logging
import sys

import pytest
from mindspore import nn
from mindspore.train import Model
from small_training import Witness, curve, network, samples

from rankside import RankMonitor


def _train(rate, *callbacks, steps=6):
    net, monitor = network(), RankMonitor(log_every=2)
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), rate, 0.9))
    model.train(1, samples(steps), callbacks=[monitor, *callbacks])
    monitor.close()
    return monitor


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("scheduled", [True, False])
def test_a_line_shows_loss_and_learning_rate_of_its_step(run_dir, capsys, scheduled):
    witness = Witness()
    monitor = _train(nn.ExponentialDecayLR(0.1, 0.9, 4) if scheduled else 0.1, witness)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    rates = {step: 0.1 * 0.9 ** ((step - 1) / 4) if scheduled else 0.1 for step in (2, 4, 6)}
    assert [line.split(", grad")[0].split(", step")[0] for line in lines] == [
        f"step {step}: loss {witness.losses[step]:.4g}, lr {rates[step]:.4g}" for step in rates
    ]
    assert not monitor._record.recorder.counters["failed"]
    assert sorted(curve(run_dir, "learning-rate")) == [1, 2, 3, 4, 5, 6]


def test_where_stdout_is_closed_that_is_said_once_and_everything_is_recorded(
    run_dir, graph_mode, monkeypatch, caplog, tmp_path
):
    with (tmp_path / "stdout").open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    with caplog.at_level(logging.WARNING, "crossrank"):
        monitor = _train(0.1)
    assert sorted(curve(run_dir, "loss")) == [1, 2, 3, 4, 5, 6]
    assert [r.message for r in caplog.records if r.name == "crossrank"] == [
        "no more progress lines are printed: I/O operation on closed file."
    ]
    assert not monitor._record.recorder.counters["failed"]
