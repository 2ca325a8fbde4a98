"""The gatherer: what is logged becomes reports at the steps that the schedule names, with nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import across_ranks

from rankside.errors import ConfigError
from rankside.gather import Gatherer
from rankside.schedule import Schedule
from rankside.tags import Tag, TagKind
from rankside.window import Column


def gather(steps, every=1, value=float):
    gatherer = Gatherer(Schedule(every))
    reports = [r for step in steps for r in gatherer.add(step, {"loss": value(step)}, step / 10)]
    return reports + gatherer.finish()


def ends(reports):
    return [report.step for report in reports]


def counts(reports):
    return [int(report.columns[Column.COUNT].max()) for report in reports]


def test_every_step_is_a_report_of_its_own_by_default():
    assert ends(gather(range(1, 6))) == [1, 2, 3, 4, 5]


def test_a_window_is_reported_at_its_last_step_and_the_first_step_alone():
    reports = gather(range(1, 26), every=10)
    assert (ends(reports), counts(reports)) == ([1, 10, 20, 25], [1, 9, 10, 5])
    assert reports[1].columns[Column.MEAN, 0] == np.mean(range(2, 11))
    assert reports[1].wall_time == 1.0


def test_the_length_of_windows_changes_from_phase_to_phase():
    assert ends(gather(range(1, 131), every={0: 1, 5: 10, 100: 25})) == [
        1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 125, 130,
    ]  # fmt: skip


def test_steps_that_jump_over_a_boundary_end_the_window():
    assert ends(gather(range(7, 70, 7), every=10)) == [7, 14, 21, 35, 42, 56, 63]


def test_ranks_that_jump_by_other_widths_meet_at_common_steps():
    ones, threes = (set(ends(gather(range(n, 91, n), every=30))) for n in (1, 3))
    assert {30, 60, 90} <= ones & threes


def test_values_of_one_step_may_come_in_several_calls():
    gatherer = Gatherer(Schedule())
    assert gatherer.add(1, {"loss": 1.0}, 0.0) == gatherer.add(1, {"own": 2.0}, 0.0) == []
    (report,) = gatherer.add(2, {"loss": 3.0}, 0.0)
    assert [tag.name for tag in gatherer.tags] == ["loss", "own"]
    assert report.columns[Column.LAST].tolist() == [1.0, 2.0]


def test_what_is_logged_after_the_report_of_a_step_makes_a_further_report_of_it():
    gatherer = Gatherer(Schedule(5))
    for step in range(1, 11):
        gatherer.add(step, {"loss": 1.0}, 0.0)
    assert ends(gatherer.settle()) == [10]
    gatherer.add(10, {"own": 2.0}, 0.0)
    (report,) = gatherer.settle()
    assert (report.step, counts([report])) == (10, [1])
    assert ends(
        [r for s in range(11, 16) for r in gatherer.add(s, {"loss": 1.0}, 0.0)] + gatherer.finish()
    ) == [15]


def test_a_step_that_comes_out_of_order_ends_no_window():
    gatherer = Gatherer(Schedule(10))
    reports = [r for s in (*range(11, 18), 3, 18, 19, 20, 21) for r in gatherer.add(s, {"loss": 1.0}, 0.0)]
    assert ends(reports) == [11, 20]
    assert counts(reports) == [1, 10]


def test_a_new_beginning_at_an_earlier_step_counts_windows_from_there():
    gatherer = Gatherer(Schedule(10))
    for step in range(1, 35):
        gatherer.add(step, {"loss": 1.0}, 0.0)
    assert ends(gatherer.begin(20)) == [34]
    assert ends([r for s in range(21, 42) for r in gatherer.add(s, {"loss": 1.0}, 0.0)]) == [30, 40]


def test_the_tags_of_a_window_are_all_that_any_of_its_steps_had():
    gatherer = Gatherer(Schedule(10))
    gatherer.add(1, {"x": 0.0}, 0.0)
    gatherer.add(2, {"a": 1.0, "b": float("nan")}, 0.0)
    gatherer.add(3, {"b": 2.0, "a": 3.0}, 0.0)
    gatherer.add(4, {"c": 5.0}, 0.0)
    (report,) = gatherer.finish()[-1:]
    by_name = {gatherer.tags[i].name: report.columns[:, k].tolist() for k, i in enumerate(report.tag_ids)}
    assert by_name["a"][:4] == [2, 0, 2.0, 2.0]
    assert by_name["b"][:3] == [1, 1, 2.0]
    assert by_name["c"][Column.LAST] == 5.0


def test_values_are_rounded_to_float32_once_and_too_large_ones_become_infinite():
    gatherer = Gatherer(Schedule())
    report = gatherer.single(1, {"a": 0.1, "b": 1e300, "c": -1e300}, 0.0)
    assert report.columns[Column.LAST].tolist() == [float(np.float32(0.1)), np.inf, -np.inf]
    assert report.columns[Column.NONFINITE].tolist() == [0, 1, 1]


def test_a_value_that_is_no_number_does_not_stop_the_steps_after_it():
    gatherer = Gatherer(Schedule())
    gatherer.add(1, {"a": "text"}, 0.0)
    with pytest.raises(TypeError, match="real number"):
        gatherer.add(2, {"a": 1.0}, 0.0)
    assert gatherer.settle() == []
    gatherer.add(3, {"a": 1.0}, 0.0)
    assert ends(gatherer.settle()) == [3]


def test_a_declared_tag_keeps_its_declaration_and_a_known_name_its_meaning():
    gatherer = Gatherer(Schedule())
    gatherer.describe(Tag("own", TagKind.TIMING, "ms", "mine"))
    gatherer.single(1, {"own": 1.0, "loss": 1.0, "strange": 1.0}, 0.0)
    assert [tag.kind for tag in gatherer.tags] == [TagKind.TIMING, TagKind.LOCAL, TagKind.UNKNOWN]


@given(
    st.sets(st.integers(0, 200), min_size=1).map(sorted),
    st.one_of(
        st.integers(1, 40),
        st.dictionaries(st.integers(1, 150), st.integers(1, 30)).map(lambda d: {0: 3, **d}),
    ),
    st.data(),
)
def test_windows_partition_the_steps_whatever_the_schedule(steps, every, data):
    numbers = {step: data.draw(st.floats(-100, 100, width=32) | st.just(float("nan"))) for step in steps}
    reports = gather(steps, every, numbers.__getitem__)
    assert ends(reports) == sorted(set(ends(reports)))
    first = -1
    for report in reports:
        inside = [numbers[s] for s in steps if first < s <= report.step]
        mean, std, low, high = across_ranks(inside)
        column = report.columns[:, 0]
        finite = int(np.isfinite(inside).sum())
        assert column[[Column.COUNT, Column.NONFINITE]].tolist() == [finite, len(inside) - finite]
        assert np.allclose(
            column[[Column.MEAN, Column.MIN, Column.MAX]], [mean, low, high], atol=1e-10, equal_nan=True
        )
        assert np.allclose(
            column[Column.M2], std**2 * finite if finite else np.nan, atol=1e-8, equal_nan=True
        )
        first = report.step


@pytest.mark.parametrize(
    "every",
    [0, -1, 1.5, True, None, "5", [1, 2], {}, {1: 2}, {0: 0}, {0: 1, -5: 2}, {0: 1, 5: 2.0}, {"0": 1}],
)
def test_a_schedule_that_cannot_be_kept_is_refused_with_what_is_expected(every):
    with pytest.raises(ConfigError, match="every="):
        Schedule(every)
