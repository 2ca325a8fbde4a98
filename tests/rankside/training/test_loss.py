"""The loss is recorded per step, as the train cell returned it."""

from __future__ import annotations

import mindspore
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Model
from small_training import Witness, curve, network, samples

from rankside import RankMonitor
from rankside.training.loss import micro_batches


@pytest.mark.usefixtures("mode")
def test_every_step_has_the_loss_that_the_train_cell_returned(run_dir):
    witness, monitor = Witness(), RankMonitor(log_every=0)
    net = network()
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    model.train(2, samples(10), callbacks=[monitor, witness])
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert sorted(curve(run_dir, "loss")) == list(range(1, 21))


class _RunningLoss(nn.TrainOneStepCell):
    """Returns the sum of the losses so far, in a parameter that each step overwrites."""

    def __init__(self, net, optimizer):
        super().__init__(net, optimizer)
        self.total = Parameter(Tensor(0.0, mindspore.float32), name="total", requires_grad=False)

    def construct(self, *inputs):
        loss = self._no_sens_impl(*inputs)
        ops.assign(self.total, self.total + loss)
        return self.total


@pytest.mark.usefixtures("mode")
def test_a_loss_that_the_next_step_overwrites_is_recorded_as_it_was(run_dir):
    net, witness, monitor = network(), Witness(), RankMonitor(log_every=0)
    cell = _RunningLoss(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
    Model(cell.set_train()).train(1, samples(30), callbacks=[monitor, witness])
    monitor.close()
    assert len(set(witness.losses.values())) == 30
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "added_up"),
    [
        ({}, 1),
        ({"gradient_accumulation_steps": 4}, 4),
        ({"gradient_accumulation_steps": 4, "micro_batch_interleave_num": 2}, 8),
        ({"gradient_accumulation_steps": 4, "calculate_per_token_loss": True}, 1),
        ({"micro_batch_num": 4}, 1),  # counts in a pipeline only
    ],
)
def test_micro_batches_are_those_by_which_mindformers_divides_the_loss(
    options, added_up, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # importing it makes a folder
    from mindformers.core.callback.callback import MFLossMonitor  # noqa: PLC0415 (it takes seconds)

    monitor = MFLossMonitor(**options)
    assert monitor._fix_loss_for_parallel(24.0) == 24.0 / added_up
    assert micro_batches([monitor]) == added_up
