import numpy as np
import pytest
from worlds import World, noisy

from rankside.tags import Tag, TagKind


def run(ranks=5, *, bad=3, factor=10.0, begins=0, steps=60, tag="loss", nature=0.0, seed=1):
    """The values of rank `bad` are `factor` times its peers' from step `begins` on."""
    rng = np.random.default_rng(seed)
    world = World(tag)
    natural = nature * rng.normal(size=ranks)
    for step in range(steps):
        level = 2.0 * np.exp(-step / 200)
        wrong = np.where((np.arange(ranks) == bad) & (step >= begins), factor, 1.0)
        world.feed((level + natural + 0.1 * rng.normal(size=ranks)) * wrong)
    return world


@pytest.mark.parametrize("tag", ["loss", "local-grad-norm"])
def test_a_rank_that_is_grossly_off_from_the_first_step_on_is_a_chronic_outlier_and_the_message_says_since_when(
    tag,
):
    (finding,) = run(tag=tag, factor=30).findings
    assert (finding.kind, finding.ranks, finding.persistence) == ("outlier", (3,), "chronic")
    assert (finding.first_step, finding.step) == (1, 50)
    assert "from the first step on" in finding.message
    assert "far above" in finding.message
    assert finding.evidence["peers_low"] < finding.evidence["peers"] < finding.evidence["peers_high"]


def test_one_of_very_many_ranks_is_found_too_and_also_below_its_peers():
    (finding,) = run(ranks=512, bad=77, factor=-3).findings
    assert finding.ranks == (77,)
    assert "far below" in finding.message


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ranks", [6, 8, 64])
def test_ranks_that_differ_by_nature_are_no_finding(ranks, seed):
    assert run(ranks, bad=-1, nature=0.3, seed=seed, steps=100).findings == []


def test_a_rank_that_is_a_little_apart_by_nature_is_no_finding():
    assert run(ranks=8, factor=1.1, nature=0.1).findings == []


def test_of_fewer_than_five_ranks_an_offset_is_taken_for_nature():
    assert run(ranks=4).findings == []


@pytest.mark.parametrize("begins", [20, 40])
def test_what_begins_on_the_way_was_not_there_from_the_first_step_on(begins):
    assert not [each for each in run(begins=begins).findings if "first step" in each.message]


def test_numbers_that_are_not_known_to_be_comparable_may_differ():
    assert run(tag="samples-in-my-shard").findings == []
    assert run(tag=Tag("memory", TagKind.INFO)).findings == []


def test_two_curves_of_one_rank_are_one_fault():
    rng = np.random.default_rng(2)
    world = World("loss", "local-grad-norm")
    for _ in range(60):
        world.feed(*(np.exp(0.1 * rng.normal(size=6)) * [1, 1, 1, 1, 30, 1] for _ in range(2)))
    (finding,) = world.opened()
    assert finding.ranks == (4,)


def test_it_closes_when_the_rank_is_among_its_peers():
    rng = np.random.default_rng(3)
    world = World("loss")
    for step in range(140):
        world.feed(1 + 0.1 * rng.normal(size=6) + np.where(step < 90, [0, 9, 0, 0, 0, 0], 0))
    closed = [each for each in world.findings if each.status == "closed"]
    assert [each.ranks for each in closed][:1] == [(1,)]
    assert "from the first step" in world.findings[0].message
    assert closed[0].id == world.findings[0].id


def test_after_a_restart_it_is_judged_anew():
    world = run()
    rng = np.random.default_rng(4)
    for step in range(60):
        world.feed((1 + 0.1 * rng.normal(size=5)) * [1, 1, 1, 10, 1], session_start=step == 0)
    assert [each.step for each in world.opened()] == [50, 110]


def test_of_a_training_that_is_seen_from_a_later_step_on_nothing_is_said_of_its_first_one():
    rng = np.random.default_rng(12)
    run = World("loss")
    for step in range(5001, 5061):
        run.feed(noisy(rng, 8) + 50 * (np.arange(8) == 1), step=step)
    (finding,) = run.opened()
    assert (finding.ranks, finding.first_step) == ((1,), 5001)
    assert "from step 5001 on, which is the first one known" in finding.message
