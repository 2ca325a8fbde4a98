import numpy as np
import pytest

from aggregator.detect import DetectionSettings
from aggregator.detect.silence import IN_THE_STEP, SignsOfLife, SilenceDetector

SETTINGS = DetectionSettings(silent_seconds=10, stalled_seconds=30, first_step_seconds=600)
FETCHING = "fetching data"


def signs(step, phase, seconds, *, silent=None, lost=(), left=(), unseen=(), ended=None, failed=None):
    ranks = len(step)
    return SignsOfLife(
        np.array(step),
        phase,
        np.array(seconds, dtype=float),
        np.zeros(ranks) if silent is None else np.array(silent, dtype=float),
        np.isin(np.arange(ranks), lost),
        np.isin(np.arange(ranks), left),
        ~np.isin(np.arange(ranks), unseen),
        np.full(ranks, np.nan) if ended is None else np.array(ended, dtype=float),
        [""] * ranks if failed is None else failed,
    )


def observe(*states):
    detector = SilenceDetector(SETTINGS)
    return [finding for state in states for finding in detector.observe(state)]


def test_a_rank_without_a_sign_of_life_and_without_a_goodbye_is_silent():
    (finding,) = observe(signs([7, 7, 7], [IN_THE_STEP] * 3, [12, 3, 12], silent=[0, 12, 0]))
    assert (finding.kind, finding.ranks, finding.first_step) == ("silent", (1,), 8)
    assert "rank 1: no sign of life without a goodbye; rank 1 was last heard 12 s ago" in finding.message
    assert "in the step after step 7; 2 ranks are alive" in finding.message


def test_a_rank_that_is_known_to_be_gone_is_silent_at_once():
    (finding,) = observe(signs([7, 7, 7], [IN_THE_STEP] * 3, [1, 3, 1], silent=[0, 3, 0], lost=[1]))
    assert (finding.kind, finding.ranks) == ("silent", (1,))
    assert "rank 1: gone without a goodbye; rank 1 was last heard 3 s ago" in finding.message


def test_a_rank_that_said_goodbye_or_was_never_heard_is_not():
    state = signs(
        [7, 7, 7], ["leaving", IN_THE_STEP, "starting"], [50, 1, 50], silent=[50, 0, 50], left=[0], unseen=[2]
    )
    assert observe(state) == []


def test_the_rank_that_the_others_wait_for_is_stalled_and_it_is_said_what_it_does():
    (finding,) = observe(
        signs([9, 9, 9, 9], [IN_THE_STEP, FETCHING, IN_THE_STEP, IN_THE_STEP], [31, 33, 32, 31])
    )
    assert (finding.kind, finding.ranks, finding.first_step) == ("stalled", (1,), 10)
    assert "rank 1: has not reached step 10, in which 3 ranks have waited for 31 s" in finding.message
    assert "has been fetching data for 33 s" in finding.message


def test_a_short_wait_is_no_finding():
    assert observe(signs([9, 9], [IN_THE_STEP, FETCHING], [29, 31])) == []


def test_a_rank_that_is_a_whole_step_behind_is_stalled_whatever_it_does():
    (finding,) = observe(signs([9, 8], [IN_THE_STEP, IN_THE_STEP], [40, 50]))
    assert finding.ranks == (1,)


def test_when_all_hang_inside_one_step_nobody_is_named():
    (finding,) = observe(signs([9, 9, 9], [IN_THE_STEP] * 3, [40, 50, 45]))
    assert (finding.ranks, finding.persistence) == ((), "global")
    assert "cannot single out" in finding.message


@pytest.mark.parametrize(("seconds", "found"), [(100, 0), (700, 1)])
def test_the_first_step_compiles_the_model_and_may_take_longer(seconds, found):
    assert len(observe(signs([0, 0], [IN_THE_STEP] * 2, [seconds] * 2))) == found


def test_a_rank_that_evaluates_is_given_time():
    assert observe(signs([9, 9], [IN_THE_STEP, "evaluating"], [100, 100])) == []


def test_waiting_for_a_rank_that_is_gone_is_one_finding_not_two():
    state = signs([7, 7, 7], [IN_THE_STEP, FETCHING, IN_THE_STEP], [60, 60, 60], silent=[0, 60, 0])
    assert [each.kind for each in observe(state)] == ["silent"]


def test_a_fault_is_said_once_and_closed_when_the_rank_goes_on():
    bad = signs([9, 9, 9], [IN_THE_STEP, FETCHING, IN_THE_STEP], [31, 33, 32])
    good = signs([10, 10, 10], [IN_THE_STEP] * 3, [1, 1, 1])
    found = observe(bad, bad, good, good)
    assert [each.status for each in found] == ["open", "closed"]
    assert found[0].id == found[1].id


def test_a_rank_that_joins_the_silent_ones_is_an_update():
    one = signs([7, 7, 7], [IN_THE_STEP] * 3, [12, 3, 12], silent=[0, 12, 0])
    two = signs([7, 7, 7], [IN_THE_STEP] * 3, [12, 3, 12], silent=[0, 13, 11])
    found = observe(one, two)
    assert [(each.status, each.ranks) for each in found] == [("open", (1,)), ("update", (1, 2))]
    assert found[0].id == found[1].id


def test_when_all_ranks_are_gone_at_once_nobody_is_named():
    (finding,) = observe(signs([7, 6, 7], [IN_THE_STEP] * 3, [12, 12, 12], silent=[12, 12, 12]))
    assert (finding.kind, finding.ranks, finding.persistence, finding.first_step) == (
        "silent",
        (),
        "global",
        8,
    )
    assert "msrun's output names it" in finding.message


def test_the_rank_that_went_first_stays_named_when_the_others_follow():
    one = signs([7, 7, 7], [IN_THE_STEP] * 3, [12, 3, 12], silent=[0, 12, 0])
    all_gone = signs([7, 7, 7], [IN_THE_STEP] * 3, [22, 13, 22], silent=[10, 22, 10])
    assert [(each.status, each.ranks) for each in observe(one, all_gone)] == [("open", (1,))]


def gone(*, ended, lost, silent=None, failed=None, left=(), step=None):
    """ended: for how long each rank has ended, NaN where it has not or nobody knows."""
    ranks = len(ended)
    silent = np.nan_to_num(np.array(ended)) if silent is None else silent
    return signs(
        [7] * ranks if step is None else step,
        [IN_THE_STEP] * ranks,
        [5] * ranks,
        silent=silent,
        lost=lost,
        left=left,
        ended=ended,
        failed=failed,
    )


def test_the_rank_that_ended_first_is_named_and_the_others_are_told_as_having_followed():
    (finding,) = observe(gone(ended=[3.1, 4.0, 3.1], lost=[0, 1, 2]))
    assert (finding.kind, finding.ranks) == ("silent", (1,))
    assert "ranks 0 and 2 ended 0.90 s after it or later, in consequence" in finding.message


@pytest.mark.parametrize("ended", [[3.98, 4.0, 3.1], [np.nan, 4.0, 3.1]])
def test_where_two_ended_together_or_an_end_is_not_known_nobody_is_named_first(ended):
    (finding,) = observe(gone(ended=ended, silent=[4, 4, 4], lost=[0, 1, 2]))
    assert finding.ranks == ()


def test_a_rank_that_dies_an_hour_after_another_one_has_not_followed_it():
    (finding,) = observe(gone(ended=[3.0, 3600.0, np.nan], lost=[0, 1]))
    assert finding.ranks == (0, 1)


def test_what_followed_is_told_from_the_rank_that_ended_first_whatever_step_another_one_had_reached():
    (finding,) = observe(gone(ended=[60.0, 59.0, 20.0, np.nan], lost=[0, 1, 2], step=[7, 7, 3, 7]))
    assert finding.ranks == (0, 2)
    assert "rank 0 was last heard 60 s ago, in the step after step 7" in finding.message
    assert "rank 1 ended 1.00 s after it" in finding.message


def test_a_rank_that_failed_is_named_and_not_those_that_msrun_then_killed():
    state = gone(ended=[3.2, 4.0, 3.2], lost=[0, 2], left=[1], failed=["", "ValueError: bad batch", ""])
    (finding,) = observe(state)
    assert finding.ranks == (1,)
    assert "rank 1: failed: ValueError: bad batch" in finding.message
    assert "ranks 0 and 2 ended 0.80 s after it" in finding.message


def test_a_rank_that_failed_is_named_while_the_others_wait_for_it():
    error = ["", "ValueError: bad batch", ""]
    assert observe(gone(ended=[np.nan, 1.0, np.nan], lost=[], left=[1], failed=error)) == []
    (finding,) = observe(gone(ended=[np.nan, 4.0, np.nan], lost=[], left=[1], failed=error))
    assert finding.ranks == (1,)
    assert "2 ranks are alive and will wait for it" in finding.message


def test_an_error_that_all_ranks_run_into_is_nobodys_fault():
    error = ["ValueError: bad shape"] * 3
    assert observe(gone(ended=[3.2, 4.0, 3.5], lost=[], left=[0, 1, 2], failed=error)) == []


def test_a_rank_that_failed_because_another_one_died_is_not_accused():
    state = gone(ended=[3.0, 4.0], lost=[1], left=[0], failed=["RuntimeError: connection lost", ""])
    (finding,) = observe(state)
    assert finding.ranks == (1,)
