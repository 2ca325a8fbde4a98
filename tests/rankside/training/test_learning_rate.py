"""The learning rate of a step is the one that it used, whether the probe notes it or the optimizer is asked."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, dataset, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule
from mindspore.train import Callback, LearningRateScheduler, Model
from small_training import FiniteCheckedCell, curve, network, samples, tags

from rankside import RankMonitor


@pytest.fixture(params=[True, False], ids=["probe", "no_probe"])
def probe(request):
    """Whether gradient norms are recorded, and the learning rate with them."""
    return request.param


def _train(rate, *, probe, steps=8, callbacks=(), split=False):
    net = network()
    parameters = net.trainable_params()
    if split:
        parameters = [{"params": parameters[:2], "lr": split}, {"params": parameters[2:]}]
    monitor = RankMonitor(log_every=0, gradient_norms=probe)
    model = Model(net, nn.MSELoss(), nn.Momentum(parameters, rate, 0.9))
    model.train(1, samples(steps), callbacks=[monitor, *callbacks])
    monitor.close()


@pytest.mark.usefixtures("mode")
def test_a_constant_rate_is_recorded_at_every_step(run_dir, probe):
    _train(0.125, probe=probe)
    assert curve(run_dir, "learning-rate") == dict.fromkeys(range(1, 9), 0.125)


@pytest.mark.usefixtures("mode")
def test_a_list_of_rates_starts_with_its_first_entry(run_dir, probe):
    rates = [0.5 / (1 + step) for step in range(8)]
    _train(rates, probe=probe)
    assert curve(run_dir, "learning-rate") == pytest.approx(dict(enumerate(rates, start=1)), rel=1e-6)


@pytest.mark.usefixtures("mode")
def test_a_schedule_is_evaluated_at_the_step_it_was_used_for(run_dir, probe):
    _train(nn.ExponentialDecayLR(0.1, 0.5, 4), probe=probe)
    expected = {step: 0.1 * 0.5 ** ((step - 1) / 4) for step in range(1, 9)}
    assert curve(run_dir, "learning-rate") == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("mode")
def test_each_parameter_group_has_a_rate_of_its_own(run_dir, probe):
    _train(0.25, split=0.5, probe=probe)
    assert curve(run_dir, "learning-rate/group_0") == dict.fromkeys(range(1, 9), 0.5)
    assert curve(run_dir, "learning-rate/group_1") == dict.fromkeys(range(1, 9), 0.25)
    assert "learning-rate" not in tags(run_dir)


@pytest.mark.usefixtures("mode")
def test_groups_may_mix_a_schedule_and_a_constant(run_dir, probe):
    _train(0.25, split=nn.ExponentialDecayLR(0.1, 0.5, 4), probe=probe)
    expected = {step: 0.1 * 0.5 ** ((step - 1) / 4) for step in range(1, 9)}
    assert curve(run_dir, "learning-rate/group_0") == pytest.approx(expected, rel=1e-5)
    assert curve(run_dir, "learning-rate/group_1") == dict.fromkeys(range(1, 9), 0.25)


def test_a_rate_that_a_callback_assigns_is_recorded_from_the_next_step_on(run_dir, probe, graph_mode):
    scheduler = LearningRateScheduler(lambda rate, _: rate * 0.5)
    _train(0.5, callbacks=[scheduler], probe=probe)
    expected = {step: 0.5**step for step in range(1, 9)}
    recorded = curve(run_dir, "learning-rate")
    assert recorded == pytest.approx(expected, rel=1e-6)
    assert np.all(np.diff(list(recorded.values())) < 0)


def test_a_step_that_overflows_leaves_the_rate_to_the_next_one(run_dir, probe, graph_mode):
    net = network()
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((6, 8, width)).astype(np.float32) for width in (4, 2))
    y[2:4] = 3e38
    optimizer = nn.SGD(net.trainable_params(), nn.ExponentialDecayLR(0.5, 0.5, 1))
    loss_scale = nn.FixedLossScaleUpdateCell(256)
    cell = FiniteCheckedCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, loss_scale).set_train()
    monitor = RankMonitor(log_every=0, gradient_norms=probe)
    data = dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False)
    Model(cell).train(1, data, callbacks=[monitor])
    monitor.close()
    counted = [0, 1, 2, 2, 2, 3]  # steps 3 and 4 overflow
    expected = {step: 0.5 * 0.5**count for step, count in enumerate(counted, start=1)}
    assert curve(run_dir, "learning-rate") == pytest.approx(expected, rel=1e-6)


class _BranchingSchedule(LearningRateSchedule):
    """Takes one count only, as mindformers' schedules do."""

    def construct(self, global_step):
        return ops.cast(0.5, mindspore.float32) if global_step < 3 else ops.cast(0.25, mindspore.float32)


def test_a_schedule_that_branches_on_the_step_is_asked_at_each_step(run_dir, graph_mode, monkeypatch):
    run_dir.mkdir()
    monkeypatch.chdir(run_dir.parent)
    _train(_BranchingSchedule(), probe=False, steps=5)
    assert curve(run_dir, "learning-rate") == {1: 0.5, 2: 0.5, 3: 0.5, 4: 0.25, 5: 0.25}
    assert [path.name for path in run_dir.parent.iterdir()] == ["run"]


@pytest.mark.usefixtures("mode")
def test_a_cell_that_never_calls_its_reducer_has_its_rate_and_scale_recorded(run_dir):
    class Unreduced(FiniteCheckedCell):
        def construct(self, *inputs):
            loss = self.network(*inputs)
            scale = ops.identity(self.scale_sense)
            gradients = self.grad(self.network, self.weights)(*inputs, ops.ones_like(loss))
            loss = ops.depend(loss, self.optimizer(gradients))
            return loss, Tensor(False), scale  # noqa: FBT003 (no overflow)

    net = network()
    optimizer = nn.SGD(net.trainable_params(), nn.ExponentialDecayLR(0.5, 0.5, 1))
    cell = Unreduced(nn.WithLossCell(net, nn.MSELoss()), optimizer, nn.FixedLossScaleUpdateCell(256))
    monitor = RankMonitor(log_every=0)
    Model(cell.set_train()).train(1, samples(4), callbacks=[monitor])
    monitor.close()
    assert curve(run_dir, "learning-rate") == pytest.approx({1: 0.5, 2: 0.25, 3: 0.125, 4: 0.0625})
    assert curve(run_dir, "loss-scale") == dict.fromkeys((1, 2, 3, 4), 256.0)
    assert "grad-norm" not in tags(run_dir)


def test_a_count_that_a_callback_moves_out_of_the_schedule_costs_the_rate_alone(run_dir, graph_mode):
    class Reset(Callback):
        def on_train_step_end(self, run_context):
            parameters = run_context.original_args()
            if parameters["cur_step_num"] == 4:
                parameters["optimizer"].global_step.set_data(Tensor([5000], mindspore.int32))

    _train(nn.ExponentialDecayLR(0.1, 0.5, 4), callbacks=[Reset()], probe=True)
    expected = {step: 0.1 * 0.5 ** ((step - 1) / 4) for step in range(1, 5)}
    assert curve(run_dir, "learning-rate") == pytest.approx(expected, rel=1e-5)
    assert list(curve(run_dir, "grad-norm")) == list(range(1, 9))


@pytest.mark.usefixtures("mode")
def test_a_rate_that_another_callback_sets_as_the_step_begins_is_the_one_recorded(run_dir, probe):
    class Sets(Callback):
        def on_train_step_begin(self, run_context):
            parameters = run_context.original_args()
            rate = Tensor(1.0 / parameters["cur_step_num"], mindspore.float32)
            ops.assign(parameters["train_network"].optimizer.learning_rate, rate)

    _train(0.5, probe=probe, callbacks=[Sets()])
    expected = {step: 1.0 / step for step in range(1, 9)}
    assert curve(run_dir, "learning-rate") == pytest.approx(expected, rel=1e-6)


@pytest.mark.usefixtures("mode")
def test_a_callback_that_lets_nothing_be_set_on_it_costs_the_times_alone(run_dir, probe):
    class Frozen(Callback):
        def __setattr__(self, name, value):
            raise AttributeError(name)

    _train([0.5 / (1 + step) for step in range(8)], probe=probe, callbacks=[Frozen()])
    assert sorted(curve(run_dir, "learning-rate")) == list(range(1, 9))
    assert "data-time" not in tags(run_dir)
