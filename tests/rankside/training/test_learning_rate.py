"""The learning rate of a step is the one that step used."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import nn
from mindspore.train import LearningRateScheduler, Model
from small_training import curve, network, samples, tags

from rankside import RankMonitor


def _train(rate, *, steps=8, callbacks=(), split=False):
    net = network()
    parameters = net.trainable_params()
    if split:
        parameters = [{"params": parameters[:2], "lr": split}, {"params": parameters[2:]}]
    monitor = RankMonitor(log_every=0)
    model = Model(net, nn.MSELoss(), nn.Momentum(parameters, rate, 0.9))
    model.train(1, samples(steps), callbacks=[monitor, *callbacks])
    monitor.close()


@pytest.mark.usefixtures("mode")
def test_a_constant_rate_is_recorded_at_every_step(run_dir):
    _train(0.125)
    assert curve(run_dir, "learning-rate") == dict.fromkeys(range(1, 9), 0.125)


@pytest.mark.usefixtures("mode")
def test_a_list_of_rates_starts_with_its_first_entry(run_dir):
    rates = [0.5 / (1 + step) for step in range(8)]
    _train(rates)
    assert curve(run_dir, "learning-rate") == pytest.approx(dict(enumerate(rates, start=1)), rel=1e-6)


@pytest.mark.usefixtures("mode")
def test_a_schedule_is_evaluated_at_the_step_it_was_used_for(run_dir):
    _train(nn.ExponentialDecayLR(0.1, 0.5, 4))
    expected = {step: 0.1 * 0.5 ** ((step - 1) / 4) for step in range(1, 9)}
    assert curve(run_dir, "learning-rate") == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("mode")
def test_each_parameter_group_has_a_rate_of_its_own(run_dir):
    _train(0.25, split=0.5)
    assert curve(run_dir, "learning-rate/group_0") == dict.fromkeys(range(1, 9), 0.5)
    assert curve(run_dir, "learning-rate/group_1") == dict.fromkeys(range(1, 9), 0.25)
    assert "learning-rate" not in tags(run_dir)


@pytest.mark.usefixtures("mode")
def test_groups_may_mix_a_schedule_and_a_constant(run_dir):
    _train(0.25, split=nn.ExponentialDecayLR(0.1, 0.5, 4))
    expected = {step: 0.1 * 0.5 ** ((step - 1) / 4) for step in range(1, 9)}
    assert curve(run_dir, "learning-rate/group_0") == pytest.approx(expected, rel=1e-5)
    assert curve(run_dir, "learning-rate/group_1") == dict.fromkeys(range(1, 9), 0.25)


def test_a_rate_that_a_callback_assigns_is_recorded_from_the_next_step_on(run_dir, graph_mode):
    scheduler = LearningRateScheduler(lambda rate, _: rate * 0.5)
    _train(0.5, callbacks=[scheduler])
    expected = {step: 0.5**step for step in range(1, 9)}
    recorded = curve(run_dir, "learning-rate")
    assert recorded == pytest.approx(expected, rel=1e-6)
    assert np.all(np.diff(list(recorded.values())) < 0)
