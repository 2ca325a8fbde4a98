"""Gradient norms, learning rate and loss scale come from inside the step, and leave the user's cell as it was."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Model
from small_training import FiniteCheckedCell, curve, samples, tags

from rankside import RankMonitor
from rankside.messages import Advice


def linear_training(x, y, weight, bias, *, rate):
    """Yield (loss, gradient norm, parameter norms) of each step of SGD on a linear layer, in plain numpy."""
    for inputs, targets in zip(x, y, strict=True):
        error = inputs @ weight.T + bias - targets
        scale = 2.0 / error.size
        weight_gradient, bias_gradient = scale * error.T @ inputs, scale * error.sum(axis=0)
        squares = [np.sum(weight_gradient**2), np.sum(bias_gradient**2)]
        yield np.mean(error**2), np.sqrt(sum(squares)), np.sqrt(squares)
        weight, bias = weight - rate * weight_gradient, bias - rate * bias_gradient


def _train(*, steps=12, cell=None, sens=None, monitor=None):
    mindspore.set_seed(3)
    net = nn.Dense(4, 2)
    weight, bias = (np.array(p.asnumpy(), np.float64) for p in (net.weight, net.bias))
    optimizer = nn.SGD(net.trainable_params(), 0.1, loss_scale=float(sens or 1.0))
    monitor = monitor or RankMonitor(log_every=0, eager_norms_every=1)
    loss = nn.WithLossCell(net, nn.MSELoss())
    train_cell = cell(loss, optimizer) if cell else nn.TrainOneStepCell(loss, optimizer, sens)
    reducer = train_cell.grad_reducer
    data = samples(steps)
    Model(train_cell.set_train()).train(1, data, callbacks=[monitor])
    monitor.close()
    assert train_cell.grad_reducer is reducer
    batches = [(x.asnumpy(), y.asnumpy()) for x, y in data.create_tuple_iterator()]
    x, y = (np.array(part, np.float64) for part in zip(*batches, strict=True))
    return list(linear_training(x, y, weight, bias, rate=0.1))


def _steps(values):
    return dict(enumerate(values, start=1))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("sens", [None, 1024.0])
def test_both_norms_of_a_rank_alone_are_the_gradients_norm_without_its_scale(run_dir, sens):
    expected = _train(sens=sens)
    norms = pytest.approx(_steps(norm for _, norm, _ in expected), rel=1e-4)
    assert curve(run_dir, "grad-norm") == norms
    assert curve(run_dir, "local-grad-norm") == norms
    assert curve(run_dir, "loss") == pytest.approx(_steps(loss for loss, *_ in expected), rel=1e-4)


@pytest.mark.usefixtures("mode")
def test_norms_do_not_hold_a_dynamic_loss_scale(run_dir):
    expected = _train(
        cell=lambda net, opt: FiniteCheckedCell(net, opt, nn.DynamicLossScaleUpdateCell(64, 2, 2))
    )
    assert curve(run_dir, "grad-norm") == pytest.approx(_steps(norm for _, norm, _ in expected), rel=1e-4)
    assert curve(run_dir, "loss-scale") == _steps(
        [64.0, 64.0, 128.0, 128.0, 256.0, 256.0, 512.0, 512.0, 1024.0, 1024.0, 2048.0, 2048.0]
    )


@pytest.mark.usefixtures("mode")
def test_each_parameters_norm_is_recorded_at_its_interval(run_dir):
    expected = _train(monitor=RankMonitor(log_every=0, layer_norms_every=5))
    weight = {step: norms[0] for step, (*_, norms) in _steps(expected).items() if step % 5 == 0}
    assert curve(run_dir, "local-grad-norm/weight") == pytest.approx(weight, rel=1e-4)
    assert sorted(curve(run_dir, "local-grad-norm/bias")) == [5, 10]


@pytest.mark.usefixtures("mode")
def test_a_cell_trained_again_goes_on_with_the_right_norms(run_dir):
    mindspore.set_seed(3)
    net = nn.Dense(4, 2)
    weight, bias = (np.array(p.asnumpy(), np.float64) for p in (net.weight, net.bias))
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    data = samples(6)
    for _ in range(3):
        monitor = RankMonitor(log_every=0, eager_norms_every=1)
        model.train(1, data, callbacks=[monitor])
    monitor.close()
    batches = [(x.asnumpy(), y.asnumpy()) for x, y in data.create_tuple_iterator()] * 3
    x, y = (np.array(part, np.float64) for part in zip(*batches, strict=True))
    expected = [norm for _, norm, _ in linear_training(x, y, weight, bias, rate=0.1)]
    assert curve(run_dir, "grad-norm") == pytest.approx(_steps(expected), rel=1e-4)


def test_a_cell_compiled_before_the_monitor_saw_it_trains_on_without_norms(run_dir, graph_mode):
    net = nn.Dense(4, 2)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.125))
    model.train(1, samples(3))
    monitor = RankMonitor(log_every=0)
    model.train(1, samples(3), callbacks=[monitor])
    monitor.close()
    assert "grad-norm" not in tags(run_dir)
    assert curve(run_dir, "learning-rate") == dict.fromkeys((1, 2, 3), 0.125)


@pytest.mark.usefixtures("mode")
def test_the_probe_is_not_among_the_parameters_that_a_checkpoint_saves(run_dir):
    names = []

    class Saver(mindspore.train.Callback):
        def on_train_step_end(self, run_context):
            names[:] = [p.name for p in run_context.original_args()["train_network"].get_parameters()]

    net = nn.Dense(4, 2)
    monitor = RankMonitor(log_every=0)
    Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9)).train(
        1, samples(2), callbacks=[monitor, Saver()]
    )
    monitor.close()
    assert {"weight", "moments.weight"} <= set(names)
    assert not [name for name in names if "crossrank" in name]


@pytest.mark.parametrize(
    ("options", "steps"), [({}, [1, 10, 20]), ({"eager_norms_every": 6}, [1, 6, 12, 18])]
)
def test_a_training_that_runs_eagerly_takes_the_norms_at_an_interval_and_all_else_at_every_step(
    run_dir, pynative_mode, options, steps
):
    expected = _steps(norm for _, norm, _ in _train(steps=20, monitor=RankMonitor(log_every=0, **options)))
    for tag in ("grad-norm", "local-grad-norm"):
        assert curve(run_dir, tag) == pytest.approx({step: expected[step] for step in steps}, rel=1e-4)
    for tag in ("loss", "learning-rate"):
        assert sorted(curve(run_dir, tag)) == list(range(1, 21))


def test_a_training_that_runs_eagerly_takes_the_norms_at_every_step_for_which_dense_reports_are_asked(
    run_dir, pynative_mode
):
    class Asks(mindspore.train.Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 3:
                advice = Advice(0, 0, dense_until=6, stacks=0, stop="", step=0, places=())
                monitor._record.recorder._shipper.adviser.follow(advice)

    monitor = RankMonitor(log_every=0)
    net = nn.Dense(4, 2)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    model.train(1, samples(12), callbacks=[monitor, Asks()])
    monitor.close()
    assert sorted(curve(run_dir, "local-grad-norm")) == [1, 4, 5, 6, 10]


class _CompiledCell(nn.TrainOneStepCell):
    """A train cell that is compiled whatever the mode."""

    @mindspore.jit
    def construct(self, *inputs):
        loss = self.network(*inputs)
        sens = mindspore.ops.ones_like(loss)
        gradients = self.grad_reducer(self.grad(self.network, self.weights)(*inputs, sens))
        return mindspore.ops.depend(loss, self.optimizer(gradients))


def test_a_cell_that_is_compiled_in_pynative_mode_has_its_norms_at_every_step(run_dir, pynative_mode):
    expected = _train(cell=_CompiledCell)
    assert curve(run_dir, "grad-norm") == pytest.approx(_steps(norm for _, norm, _ in expected), rel=1e-4)
