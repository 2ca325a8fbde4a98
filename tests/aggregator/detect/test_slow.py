import numpy as np
import pytest
from worlds import World

from rankside.tags import Tag, TagKind


def times(rng, ranks=4, level=20.0):
    return level * np.exp(0.1 * rng.normal(size=ranks))


@pytest.mark.parametrize("onset", [1, 300])
def test_a_rank_ten_percent_above_its_peers_is_found_within_two_hundred_steps_also_when_it_always_was(onset):
    rng = np.random.default_rng(1)
    run = World("data-time")
    for step in range(1, onset + 201):
        run.feed(times(rng) * np.where((np.arange(4) == 3) & (step >= onset), 1.1, 1.0))
    (finding,) = run.opened()
    assert (finding.kind, finding.ranks, finding.persistence) == ("slow", (3,), "chronic")
    assert 0.05 < finding.evidence["excess_fraction"] < 0.15
    assert abs(finding.first_step - onset) <= 60


def test_of_two_ranks_the_slower_one_is_named():
    rng = np.random.default_rng(2)
    run = World("data-time")
    for _ in range(200):
        run.feed(times(rng, 2) * [1, 1.4])
    assert [each.ranks for each in run.opened()] == [(1,)]


def test_a_fast_rank_is_no_finding():
    rng = np.random.default_rng(3)
    run = World("data-time")
    for _ in range(300):
        run.feed(times(rng) * [1, 1, 0.5, 1])
    assert run.findings == []


def test_long_pauses_now_and_then_are_not_chronic():
    rng = np.random.default_rng(4)
    run = World("data-time")
    for step in range(500):
        run.feed(times(rng) + (step % 50 == 0) * np.array([0, 0, 5000, 0]))
    assert run.findings == []


@pytest.mark.parametrize(("level", "iteration"), [(0.05, 1.0), (5.0, 1000.0)])
def test_what_costs_the_step_next_to_nothing_is_no_finding(level, iteration):
    rng = np.random.default_rng(5)
    run = World("data-time", "iteration-time")
    for _ in range(300):
        run.feed(times(rng, level=level) * [1, 1, 1.3, 1], np.full(4, iteration))
    assert run.findings == []


def test_a_rank_that_sleeps_where_its_peers_need_next_to_nothing_is_found_and_the_message_has_both_times():
    rng = np.random.default_rng(10)
    run = World("host-time", "iteration-time")
    for _ in range(200):
        run.feed(times(rng, level=0.5) + np.array([0, 0, 0, 6.0]), np.full(4, 25.0))
    (finding,) = run.opened()
    assert finding.ranks == (3,)
    assert abs(finding.evidence["excess_ms"] - 6.0) < 0.1
    assert "rank 3: host-time is 6.498 ms against the peers' 0.5134 ms" in finding.message
    assert "look at its callbacks and its host" in finding.message


@pytest.mark.parametrize("seed", range(5))
def test_pauses_that_hit_ranks_at_random_are_not_chronic_where_own_time_is_short(seed):
    rng = np.random.default_rng(seed)
    run = World("host-time", "iteration-time")
    for _ in range(1000):
        pauses = (rng.random(4) < 0.2) * rng.exponential(20.0, size=4)
        run.feed(times(rng, level=0.5) + pauses, np.full(4, 25.0 + pauses.max()))
    assert run.findings == []


def test_times_that_contain_each_other_are_one_finding_under_the_narrower_one():
    rng = np.random.default_rng(6)
    run = World("host-time", "data-time")
    for _ in range(300):
        data = times(rng) * [1, 1.5, 1, 1]
        run.feed(data + 20, data)
    assert [(each.ranks, each.tag) for each in run.opened()] == [((1,), "data-time")]


def test_a_culprit_that_changes_all_the_time_is_one_rotating_finding():
    rng = np.random.default_rng(7)
    run = World("data-time")
    for step in range(600):
        own = times(rng)
        own[step // 8 % 4] *= 2
        run.feed(own)
    (finding,) = run.opened()
    assert (finding.persistence, finding.ranks) == ("rotating", (0, 1, 2, 3))


def test_it_closes_when_the_rank_has_caught_up():
    rng = np.random.default_rng(8)
    run = World("data-time")
    for step in range(800):
        run.feed(times(rng) * np.where((np.arange(4) == 1) & (step < 300), 1.3, 1.0))
    assert [(each.status, each.ranks) for each in run.findings] == [("open", (1,)), ("closed", (1,))]


def test_timing_is_judged_by_kind_not_by_name():
    rng = np.random.default_rng(9)
    run = World(Tag("own-time", TagKind.TIMING), Tag("other-time", TagKind.INFO))
    for _ in range(200):
        run.feed(times(rng) * [1.5, 1, 1, 1], times(rng) * [1, 1.5, 1, 1])
    assert [(each.ranks, each.tag) for each in run.opened()] == [((0,), "own-time")]


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_rank_ten_percent_slower_is_found_in_time_where_times_vary_slowly_as_much_as_real_ones(ranks):
    rng = np.random.default_rng(11)
    run = World("data-time")
    noise = np.zeros(ranks)
    for step in range(1200):
        noise = 0.8 * noise + 0.6 * rng.normal(size=ranks)
        slower = np.where((np.arange(ranks) == 1) & (step >= 1000), 1.1, 1.0)
        run.feed(20 * np.exp(0.04 * noise) * slower)
    (finding,) = run.opened()
    assert finding.ranks == (1,)
    assert 1000 <= finding.step <= 1200
    assert abs(finding.first_step - 1000) <= 60


def test_noise_that_grows_on_all_ranks_makes_none_of_them_slow():
    rng = np.random.default_rng(12)
    run = World("data-time")
    for step in range(1500):
        run.feed(20 * np.exp((0.2 if step >= 800 else 0.02) * rng.normal(size=8)))
    assert run.findings == []


@pytest.mark.parametrize("factor", [1.3, 10.0])
def test_the_times_in_the_sentence_are_those_since_the_change(factor):
    rng = np.random.default_rng(12)
    run = World("data-time")
    for step in range(1, 500):
        run.feed(times(rng) * np.where((np.arange(4) == 1) & (step >= 301), factor, 1.0))
    (finding,) = run.opened()
    assert abs(finding.evidence["own_ms"] / (20 * factor) - 1) < 0.1
    assert abs(finding.evidence["peers_ms"] / 20 - 1) < 0.1
    assert abs(finding.evidence["excess_ms"] / (20 * (factor - 1)) - 1) < 0.2


def test_times_of_every_tenth_step_are_dated_by_their_own_steps():
    rng = np.random.default_rng(13)
    run = World("loss", "data-time")
    for step in range(1, 6001):
        if step % 10:
            run.feed(np.ones(4), tag_ids=[0])
        else:
            run.feed(np.ones(4), times(rng) * np.where((np.arange(4) == 1) & (step >= 3000), 1.5, 1.0))
    (finding,) = run.opened("slow")
    assert abs(finding.first_step - 3000) <= 160
