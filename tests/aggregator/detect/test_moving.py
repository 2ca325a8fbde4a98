import numpy as np
import pytest

from aggregator.detect.moving import MovingSums, moving_threshold

ONE = np.zeros(1, dtype=np.int64)


def heights(scores, phi, false_alarms=1e-6):
    """scores: shape (steps,). Returns the largest sum in thresholds after each."""
    sums = MovingSums(false_alarms)
    sums.grow(1, 1)
    return np.array(
        [sums.observe(np.full((1, 1), score), np.full((1, 1), phi), ONE)[0, 0] for score in scores]
    )


@pytest.mark.parametrize("fall", [1 / 400, 1 / 60, 0.25, 1.0])
def test_a_threshold_is_passed_as_often_as_it_was_made_for_from_slow_sums_to_independent_scores(fall):
    rng = np.random.default_rng(1)
    threshold = moving_threshold(fall, 1e-4)
    if fall == 1.0:
        assert 0.8 < (rng.normal(size=10**7) > threshold).mean() / 1e-4 < 1.2
        return
    length = round(1 / fall)
    sums = np.cumsum(rng.normal(size=(200 * length, max(20, 40_000 // length))), axis=0)
    above = (sums[length:] - sums[:-length]) / np.sqrt(length) >= threshold
    passages = sum(
        1 + int((np.diff(np.flatnonzero(column)) > length).sum()) for column in above.T if column.any()
    )
    assert 0.7 < passages / (above.size * 1e-4) < 1.4


def test_a_jump_in_autocorrelated_noise_counts_most_when_it_has_the_age_that_is_looked_for():
    phi, unit = 0.8, 3.0
    scores = np.concatenate([np.zeros(100), [unit], np.full(70, unit * (1 - phi))])
    height = heights(scores, phi)
    assert np.argmax(height) == 100 + 60
    others = heights(np.concatenate([np.zeros(101), np.full(70, unit * (1 - phi))]), phi)
    assert height.max() > 1.1 * others.max()


@pytest.mark.parametrize("phi", [0.0, 0.8, 0.95])
def test_one_wild_score_is_far_from_an_alarm_at_any_age(phi):
    scores = np.zeros(500)
    scores[20] = 4.0
    assert np.abs(heights(scores, phi)).max() < 0.9


def test_what_has_left_the_longest_window_counts_no_more():
    scores = np.concatenate([np.full(50, 3.0), np.zeros(401)])
    assert heights(scores, 0.5)[-1] == 0
