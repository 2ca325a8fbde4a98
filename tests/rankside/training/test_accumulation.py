"""Where a user's train cell accumulates gradients, each norm stands at the step whose gradients it is of."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Model
from small_training import curve, samples

from rankside import RankMonitor

STEPS = 12
EVERY = 3


class AccumulatingCell(nn.TrainOneStepCell):
    """Applies the sum of the gradients of three steps; reduces that sum, or each step's gradients before."""

    def __init__(self, net, optimizer, *, reduces_first):
        super().__init__(net, optimizer)
        self.reduces_first = reduces_first
        self.sums = optimizer.parameters.clone(prefix="sum", init="zeros")
        self.done = Parameter(Tensor(0, mindspore.int32), name="done", requires_grad=False)
        self.map = ops.HyperMap()

    def construct(self, *inputs):
        loss = self.network(*inputs)
        gradients = self.grad_no_sens(self.network, self.weights)(*inputs)
        if self.reduces_first:
            gradients = self.grad_reducer(gradients)
        self.map(ops.assign_add, self.sums, gradients)
        ops.assign_add(self.done, 1)
        if self.done % EVERY == 0:
            self.optimizer(self.sums if self.reduces_first else self.grad_reducer(self.sums))
            self.map(ops.assign, self.sums, self.map(ops.zeros_like, self.sums))
        return loss


def _train(*, monitor=None, **options):
    """Train, and again in plain numpy; return loss, norm of the step's own and of the summed gradients by step."""
    mindspore.set_seed(3)
    net = nn.Dense(4, 2)
    weight, bias = (np.array(p.asnumpy(), np.float64) for p in (net.weight, net.bias))
    cell = AccumulatingCell(
        nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1), **options
    )
    monitor = monitor or RankMonitor(log_every=0, layer_norms_every=2, eager_norms_every=1)
    data = samples(STEPS)
    Model(cell.set_train()).train(1, data, callbacks=[monitor])
    monitor.close()
    losses, own, summed = {}, {}, {}
    sums = [np.zeros_like(weight), np.zeros_like(bias)]
    for step, (x, y) in enumerate(data.create_tuple_iterator(output_numpy=True), start=1):
        error = x @ weight.T + bias - y
        gradients = [2 / error.size * error.T @ x, 2 / error.size * error.sum(axis=0)]
        sums = [total + gradient for total, gradient in zip(sums, gradients, strict=True)]
        losses[step] = np.mean(error**2)
        own[step], summed[step] = (np.sqrt(sum(np.sum(g**2) for g in parts)) for parts in (gradients, sums))
        if step % EVERY == 0:
            weight, bias = weight - 0.1 * sums[0], bias - 0.1 * sums[1]
            sums = [np.zeros_like(weight), np.zeros_like(bias)]
    return losses, own, summed


@pytest.mark.usefixtures("mode")
def test_what_is_reduced_once_in_three_steps_has_the_accumulated_norm_there_and_none_between(run_dir):
    losses, _, summed = _train(reduces_first=False)
    reducing = range(EVERY, STEPS + 1, EVERY)
    for tag in ("grad-norm", "local-grad-norm"):
        assert curve(run_dir, tag) == pytest.approx({step: summed[step] for step in reducing}, rel=1e-4)
    assert sorted(curve(run_dir, "local-grad-norm/weight")) == [6, 12]
    assert curve(run_dir, "loss") == pytest.approx(losses, rel=1e-4)
    assert sorted(curve(run_dir, "throughput")) == list(range(2, STEPS + 1))


def test_what_is_reduced_once_in_three_steps_and_runs_eagerly_has_its_norms_at_the_next_reduction_when_they_are_due(
    run_dir, pynative_mode
):
    _, _, summed = _train(reduces_first=False, monitor=RankMonitor(log_every=0, eager_norms_every=8))
    expected = pytest.approx({step: summed[step] for step in (3, 9)}, rel=1e-4)
    assert curve(run_dir, "local-grad-norm") == expected


@pytest.mark.usefixtures("mode")
def test_what_is_reduced_at_each_step_has_that_steps_own_norm(run_dir):
    losses, own, _ = _train(reduces_first=True)
    for tag in ("grad-norm", "local-grad-norm"):
        assert curve(run_dir, tag) == pytest.approx(own, rel=1e-4)
    assert curve(run_dir, "loss") == pytest.approx(losses, rel=1e-4)
