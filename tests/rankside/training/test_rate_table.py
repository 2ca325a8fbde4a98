"""A schedule is asked for many steps at once, and never for steps that the training does not have."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from rankside.training.rate_table import RateTable


class _Asked(LearningRateSchedule):
    """Exponential decay that notes what it was asked for."""

    def __init__(self):
        super().__init__()
        self.counts = []
        self.decay = nn.ExponentialDecayLR(0.5, 0.5, 100)

    def construct(self, global_step):
        self.counts.append(global_step.asnumpy().tolist())
        return self.decay(global_step)


def test_three_thousand_steps_ask_the_schedule_a_few_times_and_not_beyond_the_training():
    schedule = _Asked()
    table = RateTable(schedule, first=40, step=1000, length=3000)
    for step in range(1001, 4001):
        table.reach(step)
    assert len(schedule.counts) <= 6
    assert max(map(max, schedule.counts)) == 40 + 3000 - 1
    counts = np.arange(40, 3040)
    rates = [table.at(count) for count in counts.tolist()]
    np.testing.assert_allclose(rates, 0.5 * 0.5 ** (counts / 100), rtol=2e-6)


def test_a_training_that_goes_on_beyond_its_length_is_followed():
    table = RateTable(_Asked(), first=0, step=0, length=2)
    table.reach(5)
    assert table.at(4) == pytest.approx(0.5 * 0.5**0.04)


def test_a_count_before_the_training_is_refused():
    table = RateTable(_Asked(), first=7, step=0, length=4)
    with pytest.raises(LookupError, match="begins at 7"):
        table.at(6)


class _Mean(LearningRateSchedule):
    def construct(self, global_step):
        return ops.ReduceMean(keep_dims=True)(global_step.astype("float32"))


class _Shifted(LearningRateSchedule):
    """Returns a rate a count, but another one than for the count alone."""

    def construct(self, global_step):
        return global_step.astype("float32") / global_step.size


@pytest.mark.parametrize("schedule", [_Mean(), _Shifted()])
def test_a_schedule_that_mixes_its_counts_is_refused(schedule):
    with pytest.raises(ValueError, match="the schedule return"):
        RateTable(schedule, first=0, step=0, length=10)


MINDSPORES = [
    nn.CosineDecayLR(0.01, 0.1, 30),
    nn.ExponentialDecayLR(0.1, 0.9, 7, is_stair=True),
    nn.ExponentialDecayLR(0.1, 0.9, 7),
    nn.InverseDecayLR(0.1, 0.5, 7, is_stair=True),
    nn.InverseDecayLR(0.1, 0.5, 7),
    nn.NaturalExpDecayLR(0.1, 0.9, 7, is_stair=True),
    nn.NaturalExpDecayLR(0.1, 0.9, 7),
    nn.PolynomialDecayLR(0.1, 0.01, 9, 0.5, update_decay_steps=True),
    nn.PolynomialDecayLR(0.1, 0.01, 9, 0.5),
    nn.WarmUpLR(0.1, 12),
]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("schedule", MINDSPORES, ids=lambda schedule: type(schedule).__name__)
def test_mindspores_schedules_are_known_as_they_are_for_each_count_and_leave_nothing_in_the_users_folder(
    schedule, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    table = RateTable(schedule, first=3, step=0, length=40)
    table.reach(40)
    alone = [
        float(schedule.construct(Tensor([count], mindspore.int32)).asnumpy().item()) for count in range(3, 43)
    ]
    np.testing.assert_allclose([table.at(count) for count in range(3, 43)], alone, rtol=1e-6)
    assert not list(tmp_path.iterdir())


def test_graph_mode_compiles_nothing_to_ask_a_schedule(graph_mode):
    schedule = nn.CosineDecayLR(0.01, 0.1, 50)
    table = RateTable(schedule, first=0, step=0, length=50)
    expected = 0.01 + 0.045 * (1 + np.cos(np.pi * np.arange(50) / 50))
    np.testing.assert_allclose([table.at(count) for count in range(50)], expected, rtol=1e-5)
    assert not schedule.compile_cache
