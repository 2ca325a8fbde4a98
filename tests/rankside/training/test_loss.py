"""The loss is recorded per step, as the train cell returned it."""

from __future__ import annotations

import pytest
from mindspore import nn
from mindspore.train import Model
from small_training import Witness, curve, network, samples

from rankside import RankMonitor


@pytest.mark.usefixtures("mode")
def test_every_step_has_the_loss_that_the_train_cell_returned(run_dir):
    witness, monitor = Witness(), RankMonitor(log_every=0)
    net = network()
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    model.train(2, samples(10), callbacks=[monitor, witness])
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert sorted(curve(run_dir, "loss")) == list(range(1, 21))
