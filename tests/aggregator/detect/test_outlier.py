import numpy as np
import pytest
from worlds import World, noisy

from aggregator.detect import DetectionSettings, PeerGroups


def drifting(rng, bad, onset, shift, *, ranks=4, until=200, end=10**9, **world):
    """A run of `loss` in which one rank is off by `shift` from step `onset` to `end`."""
    run = World("loss", **world)
    for step in range(1, until + 1):
        loss = noisy(rng, ranks, level=0.5 + 2 * np.exp(-step / 60))
        if onset <= step < end:
            loss[bad] += shift
        run.feed(loss)
    return run


@pytest.mark.parametrize("bad", range(4))
@pytest.mark.parametrize("shift", [0.4, -0.4, 5.0])
def test_of_four_ranks_the_one_that_parts_is_named_with_the_step(bad, shift):
    run = drifting(np.random.default_rng(bad), bad, 120, shift)
    (finding,) = run.opened()
    assert (finding.kind, finding.ranks, finding.tag) == ("outlier", (bad,), "loss")
    assert abs(finding.first_step - 120) <= 3
    assert finding.step <= 140
    assert (
        f"rank {bad}: loss has moved {'above' if shift > 0 else 'below'} its peers since step"
        in finding.message
    )
    assert abs(finding.evidence["value"] - finding.evidence["peers"] - shift) < 0.3


@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_healthy_steps_of_four_ranks_are_silent(seed):
    assert drifting(np.random.default_rng(seed), 0, 10**9, 0.0).findings == []


def test_peers_that_differ_by_a_constant_are_silent_and_a_change_of_it_is_found():
    rng = np.random.default_rng(1)
    run = World("loss")
    offset = np.array([0.0, 1.0, 5.0, -3.0, 0.5])
    for step in range(1, 401):
        run.feed(noisy(rng, 5) + offset + (step > 300) * np.array([0, 0, -0.5, 0, 0]))
    (finding,) = run.opened()
    assert finding.ranks == (2,)
    assert finding.first_step > 295


def test_one_noisy_step_is_not_a_finding():
    assert drifting(np.random.default_rng(2), 1, 120, 50.0, end=121).findings == []


def test_of_two_peers_both_are_named_and_it_is_said_that_they_cannot_be_told_apart():
    (finding,) = drifting(np.random.default_rng(3), 1, 120, 1.0, ranks=2).opened()
    assert finding.ranks == (0, 1)
    assert "cannot tell which" in finding.message


def test_of_three_peers_one_is_named():
    (finding,) = drifting(np.random.default_rng(4), 1, 120, 1.0, ranks=3).opened()
    assert finding.ranks == (1,)


def test_a_rank_alone_is_never_an_outlier():
    assert drifting(np.random.default_rng(5), 0, 120, 9.0, ranks=1).opened("outlier") == []


def test_ranks_are_compared_with_their_peers_only():
    rng = np.random.default_rng(6)
    groups = PeerGroups.from_layout({"dp": 4, "pp": 2})
    run = World("loss", groups=groups)
    for step in range(1, 301):
        loss = noisy(rng, 8)
        loss[4:] += 3 * np.sin(step / 9)  # what a stage has in common is nobody's fault in it
        loss[6] += step >= 200
        run.feed(loss)
    (finding,) = run.opened()
    assert finding.ranks == (6,)
    assert finding.evidence["peers_compared"] == 3


def test_a_fault_is_opened_once_becomes_chronic_once_and_closes_when_the_rank_is_back():
    run = drifting(np.random.default_rng(7), 2, 120, 1.0, until=700, end=400)
    assert [(each.status, each.persistence) for each in run.findings] == [
        ("open", "transient"),
        ("update", "chronic"),
        ("closed", "chronic"),
    ]
    assert len({each.id for each in run.findings}) == 1
    assert 400 < run.findings[-1].step < 600


def test_a_second_metric_of_the_same_rank_joins_the_finding():
    rng = np.random.default_rng(8)
    run = World("loss", "local-grad-norm")
    for step in range(1, 301):
        loss, norm = noisy(rng, 4), np.exp(0.2 * rng.normal(size=4))
        if step >= 200:
            loss[1] += 1
            norm[1] *= 3
        run.feed(loss, norm)
    (finding,) = run.opened()
    joined = [each for each in run.findings if each.evidence.get("also")]
    assert finding.ranks == (1,)
    assert joined[0].id == finding.id


def test_two_ranks_that_part_are_two_findings():
    rng = np.random.default_rng(9)
    run = World("loss")
    for step in range(1, 301):
        run.feed(noisy(rng, 8) + (step >= 200) * np.array([0, 1.0, 0, 0, 0, -1.0, 0, 0]))
    assert sorted(each.ranks for each in run.opened()) == [(1,), (5,)]


def test_noise_that_grows_on_all_ranks_at_once_names_nobody():
    rng = np.random.default_rng(10)
    run = World("loss", "local-grad-norm", settings=DetectionSettings(spike_sigma=1000, explode_factor=1e9))
    for step in range(1, 601):
        more = 30.0 if step > 300 else 1.0
        run.feed(more * noisy(rng, 4), more * np.exp(0.3 * rng.normal(size=4)))
    assert [each for each in run.findings if each.ranks] == []


def test_a_world_that_grows_and_tags_that_come_later_are_taken_in():
    rng = np.random.default_rng(11)
    run = World("loss", "local-grad-norm")
    for step in range(1, 401):
        ranks = 4 if step <= 100 else 6
        loss = noisy(rng, ranks)
        if step >= 300:
            loss[5] += 1
        if step <= 150:
            run.feed(loss, tag_ids=[0])
        else:
            run.feed(loss, np.exp(0.1 * rng.normal(size=ranks)))
    (finding,) = run.opened()
    assert finding.ranks == (5,)


def test_a_restart_forgets_what_was_learnt():
    rng = np.random.default_rng(12)
    run = World("loss")
    for _ in range(200):
        run.feed(noisy(rng, 4))
    run.feed(noisy(rng, 4) + np.array([0, 0, 2, 0]), step=50, session_start=True)
    for _ in range(150):
        run.feed(noisy(rng, 4) + np.array([0, 0, 2, 0]))
    assert run.findings == []


def test_a_tag_of_every_tenth_step_is_judged_by_its_own_reports_and_dated_by_its_own_steps():
    rng = np.random.default_rng(13)
    run = World("loss", "local-grad-norm")
    for step in range(1, 6001):
        loss, norm = noisy(rng, 8), np.exp(0.1 * rng.normal(size=8))
        norm[3] *= np.exp(0.09 * (step >= 4000))
        if step % 10:
            run.feed(loss, tag_ids=[0])
        else:
            run.feed(loss, norm)
    (finding,) = run.opened("outlier")
    assert (finding.ranks, finding.tag) == ((3,), "local-grad-norm")
    assert abs(finding.first_step - 4000) <= 150
    assert finding.step <= 5000


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_counts_of_what_is_rare_and_numbers_that_begin_to_vary_late_are_silent(ranks):
    rng = np.random.default_rng(14)
    run = World("rare", "late", "rare-later")
    for step in range(1, 1501):
        late = noisy(rng, ranks) if step > 200 else np.full(ranks, 3.0)
        run.feed(rng.poisson(0.02, size=ranks), late, rng.poisson(0.05 * (step > 500), size=ranks))
    assert run.findings == []


@pytest.mark.parametrize(("level", "ranks"), [(3.0, 4), (0.0, 4), (3.0, 2)])
def test_of_numbers_that_were_constant_the_one_that_changes_for_good_is_found(level, ranks):
    run = World("count")
    for step in range(1, 301):
        run.feed(level + 0.5 * (step >= 200) * (np.arange(ranks) == 1))
    (finding,) = run.opened()
    assert finding.ranks == ((1,) if ranks > 2 else (0, 1))
    assert (finding.first_step, finding.step <= 205) == (200, True)


def test_numbers_that_change_from_constant_to_constant_on_all_ranks_at_once_are_silent():
    run = World("setting")
    for step in range(1, 401):
        run.feed(np.arange(4.0) if step < 200 else np.array([5.0, 2.0, 9.0, 1.0]))
    assert run.findings == []


def test_a_rank_that_by_nature_stands_below_its_peers_and_moves_up_is_not_said_to_be_above_them():
    rng = np.random.default_rng(15)
    run = World("loss")
    for step in range(1, 301):
        run.feed(
            noisy(rng, 4, level=5.0) + np.array([0, 0, -3, 0]) + (step >= 280) * np.array([0, 0, 0.5, 0])
        )
    (finding,) = run.opened()
    assert "rank 2: loss has moved up towards its peers since step" in finding.message
    assert finding.evidence["direction"] == "above"
    assert "the median of the other 3 ranks of its group (2.0" in finding.message


def test_a_metric_that_comes_and_goes_while_another_keeps_the_fault_open_is_told_once():
    rng = np.random.default_rng(16)
    run = World("loss", "local-grad-norm")
    for step in range(1, 3001):
        loss, norm = noisy(rng, 4), np.exp(0.1 * rng.normal(size=4))
        loss[1] += step >= 200
        norm[1] *= 1 + (step >= 300) * (step // 300 % 2)
        run.feed(loss, norm)
    lines = [each for each in run.findings if each.kind == "outlier"]
    assert [each.status for each in lines] == ["open", "update", "update"]
    assert lines[-1].message.count("also") == 1


@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_a_rank_however_far_off_is_the_only_one_that_is_named(ranks):
    run = drifting(np.random.default_rng(17), 1, 200, 1e30, ranks=ranks, until=400)
    assert [each.ranks for each in run.opened()] == [(1,)]
