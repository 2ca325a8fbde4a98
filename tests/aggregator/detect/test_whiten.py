import numpy as np
import pytest
from worlds import World

from aggregator.detect import DetectionSettings, PeerGroups
from aggregator.detect.whiten import Whitener

IDS = np.arange(1)


def scores_of(values, *, groups=None):
    """values: shape (steps, ranks). Returns the scores, the same shape."""
    whitener = Whitener(DetectionSettings())
    grouping = (groups or PeerGroups()).local(values.shape[1])
    nobody = np.zeros((values.shape[1], 1), bool)
    return np.array(
        [
            whitener.observe(
                row[:, None], IDS, grouping, frozen=nobody, excluded=nobody, suspect=nobody
            ).score[:, 0]
            for row in values
        ]
    )


def autoregressive(rng, steps, ranks, phi):
    values = np.empty((steps, ranks))
    last = rng.normal(size=ranks)
    for step in range(steps):
        last = phi * last + np.sqrt(1 - phi**2) * rng.normal(size=ranks)
        values[step] = last
    return values


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_scores_of_healthy_ranks_are_white_with_mean_0_and_variance_1_whatever_the_autocorrelation(phi):
    rng = np.random.default_rng(3)
    scores = scores_of(5 + 0.3 * autoregressive(rng, 1500, 32, phi))[500:]
    assert abs(scores.mean()) < 0.01
    assert abs(scores.std() - 1) < 0.03
    assert abs(np.mean(scores[1:] * scores[:-1])) < 0.03
    # Over fifty steps a sum has fifty times the variance: nothing slow is left in it.
    assert abs(scores.reshape(20, 50, 32).sum(axis=1).var() / 50 - 1) < 0.15


def test_what_all_ranks_have_in_common_and_constant_offsets_do_not_show():
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(600, 8))
    common = np.cumsum(rng.normal(size=(600, 1)), axis=0)
    plain = scores_of(noise)
    moved = scores_of(noise + common + 10 * np.arange(8))
    np.testing.assert_allclose(moved[100:], plain[100:], atol=0.05)


def test_the_unit_of_a_metric_does_not_matter():
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(300, 4)) + 20
    np.testing.assert_allclose(scores_of(1e6 * noise)[5:], scores_of(noise)[5:], rtol=1e-6, atol=1e-9)


def test_a_rank_that_joins_late_or_is_away_for_a_while_has_no_score_meanwhile_and_harms_nobody():
    rng = np.random.default_rng(6)
    values = rng.normal(size=(400, 5)) + 100
    values[:100, 4] = np.nan
    values[200:250, 1] = np.nan
    scores = scores_of(values)
    assert np.isnan(scores[:100, 4]).all()
    assert np.isnan(scores[200:250, 1]).all()
    assert np.isfinite(scores[2:200, :4]).all()
    assert abs(scores[110:, 4].mean()) < 0.3
    assert np.nanmax(np.abs(scores)) < 6


def test_a_rank_without_peers_has_no_scores():
    rng = np.random.default_rng(7)
    assert np.isnan(scores_of(rng.normal(size=(50, 1)))).all()


def test_values_that_are_equal_on_all_ranks_do_not_explode():
    assert np.nanmax(np.abs(scores_of(np.full((100, 4), 3.0)))) == 0


def test_nothing_slow_is_left_in_scores_over_four_hundred_steps_where_a_detector_holds_suspects_back():
    rng = np.random.default_rng(8)
    run, seen = World("loss", groups=PeerGroups.from_layout({"dp": 16, "pp": 16})), []
    whitener = run.detector._outlier._whitener
    observe = whitener.observe
    whitener.observe = lambda *values, **masks: seen.append(observe(*values, **masks)) or seen[-1]
    for row in autoregressive(rng, 2800, 256, 0.8):
        run.feed(row)
    scores = np.array([each.score[:, 0] for each in seen[1200:]])
    assert abs(np.mean(scores[1:] * scores[:-1])) < 0.004
    assert abs(scores.reshape(4, 400, 256).sum(axis=1).var() / 400 - 1) < 0.12


@pytest.mark.parametrize("ranks", [3, 8])
def test_scores_of_skewed_noise_have_mean_0_although_a_robust_centre_of_the_peers_is_not_their_mean(ranks):
    values = np.exp(np.random.default_rng(9).normal(size=(2000, 8 * ranks)))
    scores = scores_of(values, groups=PeerGroups.from_layout({"dp": ranks, "pp": 8}))[500:]
    assert abs(scores.mean()) < 0.02


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_scores_of_rare_counts_are_white_with_mean_0_and_a_variance_of_1_at_most(ranks):
    values = np.random.default_rng(10).poisson(0.05, size=(3000, ranks)).astype(float)
    scores = scores_of(values)[500:]
    assert abs(scores.mean()) < 0.05
    assert scores.var() < 1.2
    assert np.abs(scores.reshape(25, 100, ranks).sum(axis=1)).max() / 10 < 4.5


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_begins_to_vary_after_long_is_learnt_as_from_its_first_step(ranks):
    rng = np.random.default_rng(11)
    noise = rng.normal(size=(500, ranks)) + np.arange(ranks)
    begun = 1 if ranks > 2 else 2  # of two that part at once either may have changed: one step more is needed
    late = scores_of(np.concatenate([np.full((304 - begun, ranks), 7.0), noise]))
    assert np.nanmax(np.abs(late[: 304 - begun])) == 0
    np.testing.assert_allclose(late[305:], scores_of(noise[begun:])[1:], atol=1e-9)


@pytest.mark.parametrize(("ranks", "part"), [(3, 0.95), (4, 0.96), (8, 0.95)])
def test_a_shift_of_one_rank_is_not_taken_for_unrest_of_its_group(ranks, part):
    groups = PeerGroups.from_layout({"dp": ranks, "pp": 64})
    values = np.random.default_rng(17).normal(size=(1020, 64 * ranks))
    shifted = groups.local(64 * ranks).members[:, 0]
    values[1000:, shifted] += 1.5
    scores = scores_of(values, groups=groups)[1000:, shifted]
    assert part < scores.mean() / (1.5 * np.sqrt(1 - 1 / ranks)) < 1.05
