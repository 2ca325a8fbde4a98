import numpy as np
import pytest

from aggregator.detect.moving import moving_threshold
from aggregator.detect.shift import ShiftTest

IDS = np.arange(1)


def first_alarm(scores, false_alarms=1e-6):
    """scores: shape (steps, ranks). Returns the step of each rank's first alarm and the onset it names, -1 for none."""
    test = ShiftTest(false_alarms)
    ranks = scores.shape[1]
    steps, onsets = np.full(ranks, -1), np.full(ranks, -1)
    for step, row in enumerate(scores):
        alarm = test.observe(row[:, None], np.zeros((ranks, 1)), np.ones((ranks, 1)), IDS, step=step)
        fresh = (np.abs(alarm.strength[:, 0]) >= 1) & (steps < 0)
        steps[fresh], onsets[fresh] = step, alarm.since[fresh, 0]
    return steps, onsets


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_scores_without_a_shift_raise_alarms_about_as_often_as_is_allowed(phi):
    rng = np.random.default_rng(1)
    allowed, ranks, steps = 1e-4, 1000, 2000
    test = ShiftTest(allowed)
    phis, widening = np.full((ranks, 1), phi), np.ones((ranks, 1))
    alarms = 0
    for step in range(steps):
        scores = rng.normal(size=(ranks, 1))
        alarm = np.abs(test.observe(scores, phis, widening, IDS, step=step).strength) >= 1
        alarms += int(alarm.sum())
        test.clear(alarm, IDS)
    assert 0.3 < alarms / (ranks * steps * allowed) < 1.1


def test_a_moving_sum_passes_its_threshold_as_often_as_it_was_made_for():
    rng = np.random.default_rng(2)
    length, rate = 64, 1e-5
    sums = np.cumsum(rng.normal(size=(4000, 2000)), axis=0)
    moving = (sums[length:] - sums[:-length]) / np.sqrt(length)
    above = moving >= moving_threshold(1 / length, rate)
    # Passages cluster: what is within a length of the one before belongs to it.
    passages = 0
    for column in above.T[above.any(axis=0)]:
        places = np.flatnonzero(column)
        passages += 1 + int((np.diff(places) > length).sum())
    assert 0.6 < passages / (above.size * rate) < 1.5


@pytest.mark.parametrize("sign", [1, -1])
def test_a_large_shift_is_found_soon_and_a_small_one_in_time_and_both_are_dated(sign):
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(1000, 100))
    scores[500:, :50] += sign * 2.5
    scores[500:, 50:] += sign * 0.35
    steps, onsets = first_alarm(scores)
    assert (steps >= 500).all()
    assert np.median(steps[:50]) <= 510
    assert np.quantile(steps[50:], 0.9) <= 850
    assert abs(np.median(onsets) - 500) <= 5


def test_one_or_two_wild_steps_raise_no_alarm():
    scores = np.zeros((200, 2))
    scores[100] = 4
    scores[101, 1] = 4
    assert (first_alarm(scores, 3e-8)[0] == -1).all()


def test_what_was_cleared_begins_anew():
    test = ShiftTest(1e-6)
    one, ids = np.ones((1, 1)), np.arange(1)
    for step in range(10):
        test.observe(2 * one, 0 * one, one, ids, step=step)
    test.clear(np.ones((1, 1), bool), ids)
    assert test.observe(0 * one, 0 * one, one, ids, step=10).strength[0, 0] == 0
