"""The loss scale of a step is the one that step used, and an overflowed step says so."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import dataset, nn
from mindspore.train import Model
from small_training import FiniteCheckedCell, Witness, curve, network, tags

from rankside import RankMonitor


def _train(run_dir, scale_sense, *, overflow_at=(), steps=12, callbacks=()):
    net = network()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, 8, 4)).astype(np.float32)
    y = rng.standard_normal((steps, 8, 2)).astype(np.float32)
    for step in overflow_at:
        y[step - 1] = 3e38
    data = dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False)
    cell = FiniteCheckedCell(
        nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.01), scale_sense
    ).set_train()
    monitor = RankMonitor(log_every=0)
    Model(cell).train(1, data, callbacks=[monitor, *callbacks])
    monitor.close()
    return curve(run_dir, "loss-scale"), curve(run_dir, "overflow"), curve(run_dir, "overflow-count")


def _expected_scales(start, *, factor, window, overflow_at, steps):
    """Scale used by each step of a dynamic loss scale, written from its documentation."""
    scales, scale, last_change = [], start, 0
    for step in range(1, steps + 1):
        scales.append(scale)
        if step in overflow_at:
            scale, last_change = max(scale / factor, 1.0), step
        elif step - last_change >= window:
            scale, last_change = scale * factor, step
    return dict(enumerate(scales, start=1))


@pytest.mark.usefixtures("mode")
def test_a_dynamic_scale_is_recorded_as_each_step_used_it(run_dir):
    overflow_at = (3, 4, 9)
    scale, overflow, count = _train(
        run_dir, nn.DynamicLossScaleUpdateCell(1024, 2, 3), overflow_at=overflow_at
    )
    assert scale == _expected_scales(1024.0, factor=2, window=3, overflow_at=overflow_at, steps=12)
    assert {step for step, value in overflow.items() if value} == set(overflow_at)
    assert [count[step] for step in (1, 3, 4, 8, 9, 12)] == [0, 1, 2, 2, 3, 3]


@pytest.mark.usefixtures("mode")
def test_a_fixed_scale_is_recorded_at_every_step(run_dir):
    scale, overflow, _ = _train(run_dir, nn.FixedLossScaleUpdateCell(256), overflow_at=(2,))
    assert scale == dict.fromkeys(range(1, 13), 256.0)
    assert [step for step, value in overflow.items() if value] == [2]


@pytest.mark.usefixtures("mode")
def test_a_scale_given_as_a_tensor_is_recorded(run_dir):
    scale, _, _ = _train(run_dir, mindspore.Tensor([64.0], mindspore.float32), steps=4)
    assert scale == dict.fromkeys(range(1, 5), 64.0)


@pytest.mark.usefixtures("mode")
def test_the_scale_of_a_cell_without_overflow_check_is_recorded(run_dir):
    net = network()
    optimizer = nn.SGD(net.trainable_params(), 0.01, loss_scale=512.0)
    manager = mindspore.FixedLossScaleManager(512.0, drop_overflow_update=False)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 8, 4)), rng.standard_normal((3, 8, 2))
    data = dataset.NumpySlicesDataset({"x": x.astype(np.float32), "y": y.astype(np.float32)}, shuffle=False)
    witness, monitor = Witness(), RankMonitor(log_every=0)
    model = Model(net, nn.MSELoss(), optimizer, loss_scale_manager=manager)
    model.train(1, data, callbacks=[monitor, witness])
    monitor.close()
    assert curve(run_dir, "loss-scale") == dict.fromkeys((1, 2, 3), 512.0)
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert "overflow" not in tags(run_dir)
