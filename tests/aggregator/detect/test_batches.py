import numpy as np
import pytest

from aggregator.detect import PeerGroups
from aggregator.detect.batches import BATCH_STEPS, BATCHES, Batches, Row

IDS = np.arange(1)


def after(excess):
    """Batches of a world of which the ranks are off their peers' 20 ms by these fractions, shape (steps, W)."""
    batches = Batches()
    grouping = PeerGroups().local(excess.shape[1])
    for row in excess:
        batches.add(20 * (1 + row[:, None]), IDS, grouping, iteration_ms=0.0)
    return batches, grouping


def autoregression(phi, steps=4000, ranks=16, seed=1):
    rng = np.random.default_rng(seed)
    values = np.zeros((steps, ranks))
    values[0] = rng.normal(size=ranks)
    for step in range(1, steps):
        values[step] = phi * values[step - 1] + np.sqrt(1 - phi**2) * rng.normal(size=ranks)
    return values


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_the_variance_of_long_means_is_known_whatever_the_dependence_between_steps(phi):
    batches, grouping = after(0.04 * autoregression(phi))
    own = 1 - 1 / 16  # what the middle of 16 takes away
    expected = 0.04**2 * (1 + phi) / (1 - phi) / BATCH_STEPS * own
    assert 0.8 < np.median(batches.long_run_variance(IDS, grouping)) / expected < 1.5


def test_a_rank_that_becomes_slow_does_not_look_noisy():
    excess = 0.04 * autoregression(0.8, steps=2000)
    healthy, grouping = after(excess)
    excess[1900:, 3] += 0.1
    slow, _ = after(excess)
    ratio = slow.long_run_variance(IDS, grouping)[3] / healthy.long_run_variance(IDS, grouping)[3]
    assert ratio < 1.5


def test_noise_that_grows_for_the_whole_group_is_believed_within_the_batches_that_are_kept():
    excess = 0.04 * autoregression(0.0)
    excess[-BATCH_STEPS * BATCHES :] *= 4
    grown, grouping = after(excess)
    calm, _ = after(excess[: -BATCH_STEPS * BATCHES])
    ratio = grown.long_run_variance(IDS, grouping) / calm.long_run_variance(IDS, grouping)
    assert np.median(ratio) > 8


def test_batches_come_newest_first_and_say_who_reported():
    excess = np.repeat(np.arange(3.0)[:, None], 4, axis=1).repeat(BATCH_STEPS, axis=0) * [0, 0, 0, 0.1]
    excess[-BATCH_STEPS:, 1] = np.nan
    batches, _ = after(excess)
    kept = batches.kept(IDS)
    np.testing.assert_allclose(kept[Row.EXCESS, :, 3, 0], [0.2, 0.1, 0.0])
    np.testing.assert_allclose(kept[Row.OWN, :, 3, 0], [24.0, 22.0, 20.0])
    assert kept[Row.SEEN, :, 1, 0].tolist() == [0, 1, 1]
