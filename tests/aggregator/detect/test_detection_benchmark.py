import pytest

from tests.benchmarks.detection.cases import benchmark

# The benchmark is run once, in the first test that asks for it.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def rows():
    return list(benchmark(quick=True, seed=1))


def test_hard_faults_are_all_found_on_the_right_rank_within_a_step(rows):
    hard = [row for row in rows if row.fault.startswith(("nonfinite", "mismatch", "dead"))]
    assert len({row.fault for row in hard}) == 4
    for row in hard:
        assert (row.recall, row.wrong, row.false) == (1.0, 0, 0), row
        assert max(row.delays) <= 1, row


def test_drifts_in_heavy_tailed_noise_are_found_in_time_on_the_right_rank(rows):
    drifts = [row for row in rows if row.fault.startswith("drift") and row.noise == "heavy"]
    assert len(drifts) == 4
    for row in drifts:
        assert row.recall >= 0.97, row
        assert row.right_rank >= 0.99, row


def test_large_drifts_in_autocorrelated_noise_are_found_on_the_right_rank(rows):
    for row in rows:
        if row.fault == "drift of 3 sigma" and row.noise == "ar":
            assert row.recall >= (0.7 if row.size == 4 else 0.95), row
            assert row.right_rank >= 0.99, row


def test_small_drifts_in_autocorrelated_noise_are_found_half_as_often_as_by_who_has_nothing_to_learn(rows):
    small = [row for row in rows if row.fault == "drift of 1 sigma" and row.noise == "ar"]
    assert len(small) == 2
    for row in small:
        assert row.recall >= 0.45 * row.oracle, row
        assert row.right_rank >= 0.99, row


def test_ranks_that_are_far_off_from_the_first_step_on_are_all_found_whatever_the_noise(rows):
    far_off = [row for row in rows if row.fault.startswith("far off")]
    assert len(far_off) == 4
    for row in far_off:
        assert (row.recall, row.wrong) == (1.0, 0), row


def test_slow_ranks_are_found_and_faults_of_all_ranks_name_nobody(rows):
    for row in rows:
        if row.fault.startswith(("slow", "global")):
            assert (row.recall, row.wrong, row.false) == (1.0, 0, 0), row


def test_healthy_training_is_next_to_silent(rows):
    healthy = [row for row in rows if row.fault == "healthy"]
    assert sum(row.rank_steps for row in healthy) > 4e6
    assert sum(row.false for row in healthy) <= 2
