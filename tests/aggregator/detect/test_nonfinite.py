import numpy as np
import pytest
from worlds import World, matrix_of

from aggregator.detect import DetectionSettings
from aggregator.detect.nonfinite import NonfiniteDetector
from aggregator.merge import merge
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


def left_out(ranks, columns, missing):
    """One step in which `missing`, a list of ranks for each metric, do not report it."""
    matrix = matrix_of(ranks.step + 1, ranks.tags, np.array(columns, dtype=float).T)
    for column, absentees in enumerate(missing):
        matrix.columns[:, absentees, column] = np.nan
        matrix.columns[:2, absentees, column] = 0
    ranks.step += 1
    found = tuple(ranks.detector.observe(matrix, merge(matrix)))
    ranks.findings += found
    return found


def test_a_metric_that_never_was_finite_hides_no_loss():
    for aux in ([NAN, NAN, NAN, NAN], [1, NAN, 1, 1]):
        ranks = world("aux", "loss")
        for _ in range(50):
            ranks.feed(aux, [1, 1, 1, 1])
        (finding,) = ranks.feed(aux, [1, NAN, 1, 1])
        assert (finding.status, finding.ranks, finding.tag, finding.first_step) == ("open", (1,), "loss", 51)


def test_a_rank_is_named_with_the_metric_that_it_shows_where_another_rank_shows_another_one():
    ranks = world("aux", "loss")
    ranks.feed([1, NAN, 1], [1, 1, 1])
    (finding,) = ranks.feed([1, NAN, 1], [1, 1, NAN])
    assert (finding.ranks, finding.tag) == ((2,), "loss")
    two = world("aux", "loss").feed([1, NAN, 1], [1, 1, NAN])
    assert {(each.ranks, each.tag, each.first_step) for each in two} == {((1,), "aux", 1), ((2,), "loss", 1)}


def test_a_loss_that_follows_a_gradient_norm_is_told_as_part_of_the_fault():
    ranks = world("local-grad-norm", "loss")
    ranks.feed([1, NAN, 1, 1], [1, 1, 1, 1])
    (update,) = ranks.feed([1, NAN, 1, 1], [1, NAN, 1, 1])
    assert (update.status, update.ranks) == ("update", (1,))
    assert "loss also, since step 2" in update.message
    assert "loss" in update.evidence["tags"]
    (spread,) = ranks.feed([NAN, NAN, NAN, NAN], [NAN, NAN, NAN, NAN])
    assert "from step 3 on no rank has a finite loss" in spread.message


def test_where_only_some_ranks_report_a_metric_all_of_these_are_all():
    ranks = world("loss", "local-grad-norm")
    first_stage = [0, 1]
    (finding,) = left_out(ranks, [[NAN, NAN, NAN, NAN], [1, 1, 1, 1]], [first_stage, []])
    assert (finding.ranks, finding.persistence) == ((), "global")
    ranks = world("loss", "local-grad-norm")
    (finding,) = left_out(ranks, [[1, 1, 1, NAN], [1, 1, 1, 1]], [first_stage, []])
    assert finding.ranks == (3,)
    assert "those of the other ranks that report it are finite" in finding.message
    (spread,) = left_out(ranks, [[1, 1, NAN, NAN], [1, 1, 1, 1]], [first_stage, []])
    assert (spread.status, spread.ranks, spread.evidence["spread_step"]) == ("update", (3,), 2)


def test_of_a_metric_of_one_rank_it_is_said_that_no_other_reports_it():
    ranks = world("accuracy", "loss")
    (finding,) = left_out(ranks, [[NAN, 1, 1, 1], [1, 1, 1, 1]], [[1, 2, 3], []])
    assert finding.ranks == (0,)
    assert "no other rank reports it" in finding.message


def test_the_other_ranks_are_not_called_finite_where_one_of_them_is_not():
    ranks = world("loss")
    ranks.feed([1, NAN, 1, 1])
    (finding,) = ranks.feed([1, NAN, NAN, 1])
    assert "of the other 3 ranks 2 are finite" in finding.message


def test_a_metric_of_every_hundredth_step_is_one_fault_until_its_own_reports_are_finite():
    ranks = world("loss", "score", quiet_steps=5)
    for step in range(1, 2001):
        if step % 100:
            ranks.feed([1, 1, 1], tag_ids=[0])
        else:
            ranks.feed([1, 1, 1], [1, NAN if step <= 500 else 1, 1])
    assert [(each.status, each.step) for each in ranks.findings if each.persistence == "transient"] == [
        ("open", 100)
    ]
    closed = ranks.findings[-1]
    assert (closed.status, closed.step) == ("closed", 1000)
    assert "over since step 600" in closed.message


def test_a_rank_that_is_gone_has_not_become_finite():
    ranks = world("loss", quiet_steps=5)
    ranks.feed([1, NAN, 1])
    for _ in range(20):
        assert left_out(ranks, [[1, 1, 1]], [[1]]) == ()
