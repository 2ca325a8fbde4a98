import numpy as np
import pytest
from worlds import World

from aggregator.detect import DetectionSettings
from aggregator.detect.nonfinite import NonfiniteDetector
from rankside.tags import Tag, TagKind

NAN, INF = float("nan"), float("inf")


def world(*tags, **changes):
    return World(*tags, detector=NonfiniteDetector(DetectionSettings(**changes)))


@pytest.mark.parametrize(("value", "word"), [(NAN, "NaN"), (INF, "infinite"), (-INF, "infinite")])
def test_the_rank_is_named_in_the_very_step(value, word):
    ranks = world("loss")
    ranks.feed([1, 1, 1, 1])
    (finding,) = ranks.feed([1, 1, 1, value])
    assert (finding.kind, finding.ranks, finding.tag, finding.first_step, finding.step) == (
        "nonfinite",
        (3,),
        "loss",
        2,
        2,
    )
    assert f"rank 3: loss is {word} since step 2" in finding.message


def test_the_spread_to_all_ranks_through_the_gradients_is_an_update_that_still_names_the_first():
    ranks = world("loss")
    ranks.feed([1, NAN, 1])
    (update,) = ranks.feed([NAN, NAN, NAN])
    assert (update.status, update.ranks, update.evidence["spread_step"]) == ("update", (1,), 2)
    assert ranks.feed([NAN, NAN, NAN]) == ()


def test_the_metric_that_fewest_ranks_share_names_the_origin():
    ranks = world("grad-norm", "loss")
    (finding,) = ranks.feed([NAN, NAN, NAN], [1, 1, NAN])
    assert (finding.ranks, finding.tag) == ((2,), "loss")


def test_a_value_that_is_bad_on_all_ranks_at_once_is_nobodys_fault():
    (finding,) = world("loss").feed([NAN, NAN, NAN])
    assert (finding.ranks, finding.persistence) == ((), "global")


def test_a_second_rank_is_a_second_finding():
    ranks = world("loss")
    ranks.feed([1, NAN, 1, 1])
    (finding,) = ranks.feed([1, NAN, NAN, 1])
    assert (finding.status, finding.ranks) == ("open", (2,))


def test_it_closes_when_the_rank_has_been_finite_for_a_while():
    ranks = world("loss", quiet_steps=5)
    ranks.feed([1, NAN, 1])
    closed = [finding for _ in range(10) for finding in ranks.feed([1, 1, 1])]
    assert [(each.status, each.step, each.id) for each in closed] == [("closed", 6, ranks.findings[0].id)]


def test_a_gradient_that_overflows_under_a_dynamic_loss_scale_is_no_finding():
    ranks = world("loss", "grad-norm", "overflow")
    assert ranks.feed([1, 1], [INF, INF], [1, 1]) == ()
    assert len(ranks.feed([1, 1], [INF, 1], [0, 0])) == 1


def test_what_is_only_shown_is_not_judged():
    assert World(Tag("note", TagKind.INFO)).feed([NAN, 1]) == ()


def test_a_restart_makes_open_findings_void():
    ranks = world("loss")
    ranks.feed([1, NAN, 1])
    ranks.step = 0
    assert ranks.feed([1, 1, 1], session_start=True) == ()
    assert [each.status for each in ranks.feed([1, NAN, 1])] == ["open"]


def test_a_fault_that_lasts_becomes_chronic_once():
    ranks = world("loss", chronic_steps=5)
    for _ in range(20):
        ranks.feed([1, NAN, 1])
    assert [(each.status, each.persistence) for each in ranks.findings] == [
        ("open", "transient"),
        ("update", "chronic"),
    ]
    assert np.isfinite(ranks.findings[-1].score)
