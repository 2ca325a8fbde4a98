"""A train cell of the user may call its gradient reducer as it likes: several times a step, by Python, or never."""

from __future__ import annotations

import logging

import mindspore
import numpy as np
import pytest
from mindspore import dataset, nn, ops
from mindspore.train import Model
from small_training import Witness, curve, samples, tags

from rankside import RankMonitor
from rankside.training.gradient_norms import obstacle


class PlainCell(nn.TrainOneStepCell):
    """What MindSpore's does, written by the user."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        gradients = self.grad_no_sens(self.network, self.weights)(*inputs)
        return ops.depend(loss, self.optimizer(self.grad_reducer(gradients)))


class TwoCallsCell(nn.TrainOneStepCell):
    """Reduces the weight's gradient by itself, then the bias's."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        gradients = self.grad_no_sens(self.network, self.weights)(*inputs)
        weight = self.grad_reducer((gradients[0],))
        bias = self.grad_reducer((gradients[1],))
        return ops.depend(loss, self.optimizer((weight[0], bias[0])))


class IdleCell(nn.TrainOneStepCell):
    """Does without the reducer."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        return ops.depend(loss, self.optimizer(self.grad_no_sens(self.network, self.weights)(*inputs)))


def _train(cell, monitor, *, steps):
    """Train a linear layer; return the norms of weight's and bias's gradients by step, of plain numpy."""
    mindspore.set_seed(3)
    net = nn.Dense(4, 2)
    weight, bias = (np.array(p.asnumpy(), np.float64) for p in (net.weight, net.bias))
    train_cell = cell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
    data = samples(steps)
    Model(train_cell.set_train()).train(1, data, callbacks=[monitor])
    monitor.close()
    norms = {}
    for step, (x, y) in enumerate(data.create_tuple_iterator(output_numpy=True), start=1):
        error = x @ weight.T + bias - y
        gradients = 2 / error.size * error.T @ x, 2 / error.size * error.sum(axis=0)
        norms[step] = tuple(np.linalg.norm(gradient) for gradient in gradients)
        weight, bias = weight - 0.1 * gradients[0], bias - 0.1 * gradients[1]
    return norms


def test_one_that_runs_eagerly_has_its_norms_at_the_interval(run_dir, pynative_mode):
    norms = _train(PlainCell, RankMonitor(log_every=0, eager_norms_every=6, layer_norms_every=4), steps=13)
    both = {step: np.hypot(*norms[step]) for step in (1, 4, 6, 8, 12)}
    for tag in ("grad-norm", "local-grad-norm"):
        assert curve(run_dir, tag) == pytest.approx(both, rel=1e-4)
    weight = {step: norms[step][0] for step in (4, 8, 12)}
    assert curve(run_dir, "local-grad-norm/weight") == pytest.approx(weight, rel=1e-4)
    assert sorted(curve(run_dir, "loss")) == list(range(1, 14))


def test_one_that_is_compiled_has_its_norms_at_every_step(run_dir, graph_mode):
    norms = _train(PlainCell, RankMonitor(log_every=0, eager_norms_every=6), steps=13)
    assert curve(run_dir, "grad-norm") == pytest.approx(
        {step: np.hypot(*of_step) for step, of_step in norms.items()}, rel=1e-4
    )


@pytest.mark.usefixtures("mode")
def test_one_that_reduces_several_times_a_step_has_the_norms_of_the_last(run_dir):
    monitor = RankMonitor(log_every=0, eager_norms_every=1, layer_norms_every=2)
    norms = _train(TwoCallsCell, monitor, steps=5)
    assert curve(run_dir, "local-grad-norm") == pytest.approx(
        {step: bias for step, (_, bias) in norms.items()}, rel=1e-4
    )
    assert sorted(curve(run_dir, "loss")) == [1, 2, 3, 4, 5]
    assert "local-grad-norm/bias" not in tags(run_dir)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("steps", [5, 120])
def test_one_that_never_calls_its_reducer_is_told_once(run_dir, caplog, steps):
    with caplog.at_level(logging.WARNING, "crossrank"):
        _train(IdleCell, RankMonitor(log_every=0), steps=steps)
    (line,) = [r.message for r in caplog.records if "gradient norms" in r.message]
    assert "the train cell IdleCell has not called its gradient reducer" in line
    assert min(steps, 100) <= int(line.partition(" steps,")[0].split()[-1]) <= steps
    assert "grad-norm" not in tags(run_dir)


@pytest.mark.usefixtures("mode")
def test_one_that_calls_its_reducer_is_not(run_dir, caplog):
    with caplog.at_level(logging.WARNING, "crossrank"):
        _train(PlainCell, RankMonitor(log_every=0), steps=120)
    assert not [r.message for r in caplog.records if "gradient norms" in r.message]


class OneByOneCell(nn.TrainOneStepCell):
    """Hands over each gradient by itself."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        weight, bias = self.grad_no_sens(self.network, self.weights)(*inputs)
        return ops.depend(loss, self.optimizer((self.grad_reducer(weight), self.grad_reducer(bias))))


class GroupedCell(nn.TrainOneStepCell):
    """Hands over gradients in groups."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        weight, bias = self.grad_no_sens(self.network, self.weights)(*inputs)
        weights, biases = self.grad_reducer(((weight,), (bias,)))
        return ops.depend(loss, self.optimizer(weights + biases))


class NothingCell(nn.TrainOneStepCell):
    """Hands over nothing."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        gradients = self.grad_no_sens(self.network, self.weights)(*inputs)
        return ops.depend(loss, self.optimizer(gradients + self.grad_reducer(())))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("cell", [OneByOneCell, GroupedCell, NothingCell])
def test_one_that_hands_its_reducer_no_plain_gradients_trains_as_without_us(run_dir, cell, caplog):
    norms = _train(cell, RankMonitor(log_every=0, eager_norms_every=1, layer_norms_every=2), steps=8)
    assert sorted(curve(run_dir, "loss")) == list(norms)
    assert "grad-norm" not in tags(run_dir)
    assert "gradient norms are not recorded" in caplog.text


class _Sparse(nn.Cell):
    def __init__(self, **options):
        super().__init__()
        self.embedding = nn.EmbeddingLookup(16, 2, **options)
        self.dense = nn.Dense(2, 2)

    def construct(self, x):
        return self.dense(self.embedding(x))


def test_sparse_gradients_are_trained_as_without_us_and_have_no_norms(run_dir, graph_mode, caplog):
    columns = {"x": np.arange(48, dtype=np.int32) % 16, "y": np.ones((48, 2), np.float32)}
    witness, monitor = Witness(), RankMonitor(log_every=0)
    for callbacks in ([witness], [monitor, witness]):
        mindspore.set_seed(1)
        net = _Sparse()
        optimizer = nn.LazyAdam(net.trainable_params(), 0.1)
        optimizer.target = "CPU"
        data = dataset.NumpySlicesDataset(columns, shuffle=False).batch(4)
        Model(net, nn.MSELoss(), optimizer).train(1, data, callbacks=callbacks)
    monitor.close()
    losses = [float(np.mean(loss)) for loss in witness.outputs]
    assert losses[:12] == losses[12:]
    assert list(curve(run_dir, "loss").values()) == pytest.approx(losses[12:], rel=1e-6)
    assert curve(run_dir, "learning-rate") == pytest.approx(dict.fromkeys(range(1, 13), 0.1))
    assert "grad-norm" not in tags(run_dir)
    assert "the gradients of an embedding are sparse" in caplog.text


def test_an_embedding_that_is_looked_up_densely_is_no_obstacle():
    net = _Sparse(target="DEVICE", sparse=False)
    assert obstacle(nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))) == ""
