import numpy as np
from worlds import World, absent, matrix_of

from aggregator.detect import DetectionSettings, PeerGroups
from aggregator.detect.mismatch import MismatchDetector
from aggregator.detect.replicated import ReplicatedTags
from aggregator.merge import merge
from rankside.tags import Tag, TagKind, well_known


def world(*tags, groups=None, **changes):
    settings = DetectionSettings(**changes)
    replicated = ReplicatedTags(settings.replicated_changes)
    return World(*tags, detector=MismatchDetector(settings, groups or PeerGroups(), replicated))


def test_the_majority_names_the_odd_rank_in_the_very_step():
    ranks = world("learning-rate")
    assert ranks.feed([0.1, 0.1, 0.1, 0.1]) == ()
    (finding,) = ranks.feed([0.1, 0.1, 0.2, 0.1])
    assert (finding.ranks, finding.first_step, finding.step) == ((2,), 2, 2)
    assert "rank 2: learning-rate is 0.2 and 0.1 on the other 3 replicas" in finding.message


def test_two_odd_ranks_of_five_are_both_named():
    (finding,) = world("learning-rate").feed([0.1, 0.3, 0.1, 0.2, 0.1])
    assert finding.ranks == (1, 3)


def test_without_a_majority_nobody_is_singled_out():
    (finding,) = world("learning-rate").feed([0.1, 0.1, 0.2, 0.2])
    assert (finding.ranks, finding.evidence["singled_out"]) == ((), False)
    assert "cannot single out" in finding.message


def test_of_two_replicas_both_are_named_and_it_is_said_that_they_cannot_be_told_apart():
    (finding,) = world("loss-scale").feed([1024, 512])
    assert (finding.ranks, finding.evidence["singled_out"]) == ((0, 1), False)
    assert "cannot single out" in finding.message


def test_parameters_that_differ_on_all_replicas_from_the_start_are_an_unseeded_initialisation():
    ranks = world("param-fingerprint")
    (finding,) = ranks.feed([1.0, 2.0, 3.0, 4.0])
    assert (finding.ranks, finding.persistence, finding.evidence["unseeded"]) == ((), "global", True)
    assert "set the same seed on all ranks" in finding.message
    assert ranks.feed([5.0, 6.0, 7.0, 8.0]) == ()


def test_an_unseeded_initialisation_is_recognised_when_the_first_parts_are_equal():
    ranks = world("param-fingerprint")
    ranks.feed([0.0, 0.0])
    (finding,) = ranks.feed([1.0, 2.0])
    assert finding.evidence["unseeded"]


def test_a_fingerprint_that_rotates_keeps_the_finding_open_between_the_bad_parts():
    ranks = world("param-fingerprint", chronic_steps=10**6)
    for step in range(1, 200):
        ranks.feed(np.full(4, float(step % 7)) + (step % 7 == 3) * np.array([0, 0.25, 0, 0]))
    assert [(each.status, each.ranks, each.first_step) for each in ranks.findings] == [("open", (1,), 3)]


def test_it_closes_when_the_replicas_have_been_equal_for_long():
    ranks = world("learning-rate", mismatch_quiet_steps=10)
    ranks.feed([0.1, 0.2, 0.1])
    for _ in range(20):
        ranks.feed([0.1, 0.1, 0.1])
    assert [(each.status, each.step) for each in ranks.findings] == [("open", 1), ("closed", 11)]


def test_rounding_of_a_reduction_is_no_mismatch_but_of_a_fingerprint_it_is():
    ranks = world("grad-norm", "param-fingerprint")
    (finding,) = ranks.feed([1, 1 + 1e-8, 1], [1, 1 + 1e-8, 1])
    assert finding.tag == "param-fingerprint"


def test_only_replicas_are_compared():
    groups = PeerGroups.from_layout({"dp": 2, "pp": 2})
    ranks = world("param-fingerprint", groups=groups)
    assert ranks.feed([1.0, 1.0, 2.0, 2.0]) == ()
    (finding,) = ranks.feed([1.0, 1.0, 2.0, 3.0])
    assert finding.evidence["group"] == [2, 3]


def test_another_number_of_one_rank_joins_the_finding():
    ranks = world("learning-rate", "param-fingerprint")
    ranks.feed([0.1, 0.2, 0.1], [1, 1, 1])
    (update,) = ranks.feed([0.1, 0.2, 0.1], [1, 2, 1])
    assert (update.status, update.ranks) == ("update", (1,))
    assert "param-fingerprint also differs, since step 2" in update.message


def test_a_rank_that_stands_out_by_another_number_is_named_also_where_all_parameters_differ():
    for order in (slice(None), slice(None, None, -1)):
        ranks = world(*("param-fingerprint", "learning-rate")[order])
        found = ranks.feed(*([1, 2, 3, 4], [0.1, 0.2, 0.1, 0.1])[order])
        assert {(each.tag, each.ranks) for each in found} == {
            ("param-fingerprint", ()),
            ("learning-rate", (1,)),
        }
        assert ranks.feed(*([5, 6, 7, 8], [0.1, 0.2, 0.1, 0.1])[order]) == ()


def test_of_what_is_compared_at_times_only_the_last_step_without_a_difference_is_told():
    ranks = world("loss-scale", "param-fingerprint")
    ranks.feed([1, 1, 1], [1, 1, 1], step=100)
    ranks.feed([1, 1, 1], tag_ids=[0], step=150)
    (finding,) = ranks.feed([1, 1, 1], [1, 2, 1], step=200)
    assert finding.evidence["equal_at"] == 100
    assert "at step 200 (the comparison at step 100 found no difference)" in finding.message


def test_what_is_not_reported_or_not_finite_is_not_compared():
    assert world("learning-rate").feed([0.1, np.nan, 0.1]) == ()


def test_an_undeclared_tag_that_was_equal_through_enough_changes_is_learnt_to_be_replicated():
    ranks = world(Tag("own"), replicated_changes=20)
    for step in range(25):
        ranks.feed(np.full(4, float(step)))
    (finding,) = ranks.feed([30, 30, 30, 31])
    assert finding.ranks == (3,)


def test_an_undeclared_tag_that_differs_or_never_changes_is_not():
    ranks = world(Tag("differs"), Tag("constant"), Tag("local", TagKind.LOCAL), replicated_changes=20)
    for step in range(50):
        ranks.feed([step, step, step + (step == 3)], [7, 7, 7], [step, step, step])
    assert ranks.feed([1, 2, 3], [7, 7, 8], [1, 2, 3]) == ()


def digests(ranks, step, values, *, gone=()):
    """One step of digests, None where a rank gives none; all but those that are gone also report a loss."""
    tags = [well_known("param-fingerprint"), well_known("loss")]
    numbers = np.array([[np.nan if each is None else each, 1.0] for each in values])
    matrix = matrix_of(step, tags, numbers)
    missing = [rank for rank, each in enumerate(values) if each is None]
    matrix.columns[:, missing, 0] = np.nan
    matrix.columns[:2, missing, 0] = 0
    for rank in gone:
        matrix = absent(matrix, rank)
    return tuple(ranks.detector.observe(matrix, merge(matrix)))


def test_digests_that_only_some_ranks_give_yet_are_not_compared_and_the_first_whole_comparison_names_the_rank():
    ranks = world("param-fingerprint")
    digests(ranks, 1, [1, 1, 1, 1])
    for step in range(2, 7):
        assert digests(ranks, step, [None, None, 2, 3]) == ()
    (finding,) = digests(ranks, 7, [4, 4, 4, 5])
    assert (finding.ranks, finding.first_step) == ((3,), 7)
    assert "the comparison at step 1 found no difference" in finding.message


def test_a_rank_that_is_gone_is_not_waited_for():
    ranks = world("param-fingerprint")
    digests(ranks, 1, [1, 1, 1, 1])
    (finding,) = digests(ranks, 2, [2, 2, 3, None], gone=[3])
    assert finding.ranks == (2,)


def test_a_rank_that_gives_no_digests_any_more_is_waited_for_as_long_as_a_mismatch_would_stay_open():
    ranks = world("param-fingerprint", mismatch_quiet_steps=20)
    digests(ranks, 1, [1, 1, 1, 1])
    found = {step: digests(ranks, step, [2, 2, 3, None]) for step in range(2, 40)}
    assert [step for step, findings in found.items() if findings] == [21]


def without(ranks, gone, *columns):
    """One step in which the ranks `gone` report nothing."""
    ranks.step += 1
    matrix = matrix_of(ranks.step, ranks.tags, np.array(columns, dtype=float).T)
    for rank in gone:
        matrix = absent(matrix, rank)
    found = tuple(ranks.detector.observe(matrix, merge(matrix)))
    ranks.findings += found
    return found


def test_a_fault_stays_the_same_whoever_of_its_replicas_is_away():
    ranks = world("learning-rate")
    ranks.feed([0.1, 0.1, 0.2, 0.1, 0.1])
    for gone in ([0], [], [0, 1], [1], [0, 1, 3], []):
        assert without(ranks, gone, [0.1, 0.1, 0.2, 0.1, 0.1]) == ()


def test_what_is_compared_no_more_is_not_called_equal_again():
    ranks = world("learning-rate", mismatch_quiet_steps=10, chronic_steps=1000)
    ranks.feed([0.1, 0.2, 0.1])
    for _ in range(30):
        assert without(ranks, [1], [0.1, 0.2, 0.1]) == ()


def test_a_number_of_every_fivehundredth_step_is_one_fault():
    ranks = world("loss-scale", "score", replicated_changes=2)
    ranks.tags[1] = Tag("score", TagKind.REPLICATED)
    for step in range(1, 3001):
        ranks.feed(*([1, 1, 1], [1, 2, 1])[: 1 if step % 500 else 2], tag_ids=[0] if step % 500 else [0, 1])
    assert [each.status for each in ranks.findings if each.status != "update"] == ["open"]


def test_a_rank_that_joins_another_odd_one_is_named_alone_and_the_first_one_stays_odd():
    ranks = world("learning-rate", mismatch_quiet_steps=10)
    ranks.feed([0.1, 0.2, 0.1, 0.1, 0.1])
    (finding,) = ranks.feed([0.1, 0.2, 0.3, 0.1, 0.1])
    assert (finding.status, finding.ranks, finding.first_step) == ("open", (2,), 2)
    assert "rank 2: learning-rate is 0.3 and 0.1 on the other 3 replicas" in finding.message
    assert [ranks.feed([0.1, 0.2, 0.3, 0.1, 0.1]) for _ in range(30)] == [()] * 30


def test_the_numbers_in_the_sentence_differ_however_close_they_are():
    (finding,) = world("learning-rate").feed([0.1, 0.1, 0.10001, 0.1])
    assert "rank 2: learning-rate is 0.10001 and 0.1 on the other 3 replicas" in finding.message
    (finding,) = world("learning-rate").feed([0.1, 0.2, 0.3, 0.1, 0.1])
    assert "ranks 1 and 2: learning-rate is 0.2 or 0.3 and 0.1 on" in finding.message


def test_a_number_that_one_rank_alone_gives_was_not_compared():
    ranks = world("loss-scale", "learning-rate")
    ranks.feed([1, 1, 1], [0.1, 0.1, 0.1])
    without(ranks, [0, 1], [1, 1, 1], [0.1, 0.1, 0.1])
    (finding,) = ranks.feed([1, 1, 1], [0.1, 0.2, 0.1])
    assert finding.evidence["equal_at"] == 1
