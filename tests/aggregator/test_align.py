"""Alignment: any order of arrival gives the same steps, each once, in ascending order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import TAGS, Sample, arrivals, logged, runs

from aggregator.align import Admission, Aligner, Report
from rankside import window
from rankside.tags import Tag
from rankside.window import Column

NEVER = float("inf")
POSITION = {name: i for i, name in enumerate(TAGS)}


class Feed:
    """An aligner, and what it has closed."""

    def __init__(self, world_size, *, wait=NEVER, lag=1000):
        self.aligner = Aligner(world_size=world_size, max_wait_seconds=wait, max_lag_steps=lag)
        self.aligner.table.add(map(Tag, TAGS))
        self.closed = []
        for rank in range(world_size):
            self.aligner.join(rank, 1, world_size=world_size)

    def log(self, rank, step, *, incarnation=1, now=0.0, close=True, **values):
        values = values or {"loss": rank + step / 100}
        return self.take(Sample(rank, step, values), incarnation=incarnation, now=now, close=close)

    def take(self, sample, *, incarnation=1, now=0.0, close=True):
        names = sorted(sample.values, key=POSITION.__getitem__)
        ids = self.aligner.table.intern(np.array([POSITION[name] for name in names], np.int64))
        columns = window.single(np.array([sample.values[name] for name in names]))
        report = Report(sample.rank, incarnation, sample.step, ids, columns, 100.0 + sample.step)
        admission = self.aligner.add(report, now=now)
        if close:
            self.close(now=now)
        return admission

    def close(self, *, now=0.0):
        closed = self.aligner.close(now=now)
        self.closed += closed
        return [matrix.step for matrix in closed]

    def finish(self):
        self.closed += self.aligner.finish()
        return self.closed

    @property
    def steps(self):
        return [matrix.step for matrix in self.closed]


def table_of(closed):
    """Return {step: {tag: {rank: value}}} of the closed steps; a value that stands twice fails."""
    table = {}
    for matrix in closed:
        for t, tag_id in enumerate(matrix.tag_ids):
            ranks = table.setdefault(matrix.step, {}).setdefault(matrix.tags[tag_id].name, {})
            for rank in np.flatnonzero(matrix.reported[:, t]).tolist():
                assert rank not in ranks
                ranks[rank] = matrix.columns[Column.LAST, rank, t]
    return table


def same_table(a, b):
    assert a.keys() == b.keys()
    for step in a:
        assert a[step].keys() == b[step].keys()
        for tag in a[step]:
            assert a[step][tag].keys() == b[step][tag].keys()
            assert all(np.array_equal(v, b[step][tag][r], equal_nan=True) for r, v in a[step][tag].items())


@given(st.data())
def test_any_order_of_arrival_gives_every_step_once_ascending_and_whole(data):
    run = data.draw(runs())
    feed = Feed(len(run))
    for sample in data.draw(arrivals(run)):
        assert feed.take(sample, close=data.draw(st.booleans())) is Admission.OPEN
    closed = feed.finish()
    assert feed.steps == sorted({sample.step for samples in run for sample in samples})
    same_table(table_of(closed), logged(run))
    assert all(m.columns.shape == (7, len(run), len(m.tag_ids)) for m in closed)
    assert all(m.wall_time == 100.0 + m.step for m in closed)
    assert feed.aligner.counts == (0, 0, 0, 0, 0)


@given(st.data())
def test_evaluation_tags_that_follow_their_step_reach_it_from_every_rank_in_any_order(data):
    ranks = data.draw(st.integers(1, 4))
    run = [
        [
            sample
            for step in range(1, 6)
            for sample in (
                [Sample(rank, step, {"loss": 1.0})]
                + ([Sample(rank, step, {"eval/accuracy": float(rank)})] if step % 2 == 0 else [])
            )
        ]
        for rank in range(ranks)
    ]
    feed = Feed(ranks)
    for sample in data.draw(arrivals(run)):
        feed.take(sample)
    same_table(table_of(feed.finish()), logged(run))
    assert feed.aligner.counts.late == 0


def test_a_step_closes_when_the_last_rank_has_reported_it():
    feed = Feed(3)
    feed.log(0, 1), feed.log(1, 1), feed.log(1, 2)
    assert (feed.steps, feed.aligner.watermark, feed.aligner.missing.tolist()) == ([], -1, [0, 2])
    feed.log(2, 1)
    assert (feed.steps, feed.aligner.watermark) == ([1], 1)


def test_ranks_that_sample_different_steps_are_never_interpolated():
    feed = Feed(2)
    for step in range(1, 13):
        for rank, every in enumerate((2, 3)):
            if step % every == 0:
                feed.log(rank, step)
    table = table_of(feed.finish())
    assert {s: sorted(t["loss"]) for s, t in table.items()} == {
        2: [0], 3: [1], 4: [0], 6: [0, 1], 8: [0], 9: [1], 10: [0], 12: [0, 1],
    }  # fmt: skip


def test_a_rank_that_never_comes_is_waited_for_once():
    feed = Feed(2, wait=30.0)
    feed.aligner = Aligner(world_size=3, max_wait_seconds=30.0)
    feed.aligner.table.add(map(Tag, TAGS))
    for rank in (0, 1):
        feed.aligner.join(rank, 1, world_size=3)
    feed.log(0, 1), feed.log(1, 1)
    assert (feed.close(now=29.9), feed.close(now=30.0)) == ([], [1])
    assert feed.aligner.counts.incomplete == 1
    feed.log(0, 2, now=31.0), feed.log(1, 2, now=31.0)
    assert feed.steps == [1, 2]


def test_a_rank_that_comes_after_its_step_was_closed_is_late_there_and_expected_from_then_on():
    feed = Feed(2, wait=30.0)
    feed.log(0, 1)
    assert feed.close(now=30.0) == [1]
    assert feed.log(1, 1, now=31.0) is Admission.LATE
    assert feed.aligner.counts.late == 1
    feed.log(0, 2, now=31.0)
    assert feed.steps == [1]
    feed.log(1, 2, now=31.0)
    assert feed.steps == [1, 2]


def test_no_more_steps_wait_than_max_lag_allows():
    feed = Feed(2, lag=3)
    for step in range(1, 6):
        feed.log(0, step)
    assert feed.steps == [1, 2]


def test_nobody_waits_for_a_rank_that_has_left():
    feed = Feed(2)
    feed.log(0, 1), feed.log(0, 2), feed.log(1, 1)
    feed.aligner.leave(1, 1)
    assert feed.close() == [2]


def test_the_goodbye_of_an_older_incarnation_is_not_that_of_the_newer():
    feed = Feed(2)
    feed.aligner.join(1, 2, world_size=2)
    feed.aligner.leave(1, 1)
    feed.log(0, 1)
    assert feed.steps == []


def test_a_value_reported_twice_before_its_step_closes_counts_and_the_last_one_wins():
    feed = Feed(2)
    feed.log(0, 1, loss=1.0, own=5.0)
    feed.log(0, 1, loss=2.0)
    feed.log(1, 1, loss=3.0)
    (matrix,) = feed.closed
    assert matrix.columns[Column.LAST, :, 0].tolist() == [2.0, 3.0]
    assert matrix.columns[Column.LAST, 0, 1] == 5.0
    assert feed.aligner.counts.repeated == 1


def test_an_older_incarnation_is_refused_and_its_reports_are_void():
    feed = Feed(1)
    assert feed.aligner.join(0, 5, world_size=1)
    assert not feed.aligner.join(0, 4, world_size=1)
    assert feed.log(0, 1, incarnation=1) is Admission.VOID
    assert feed.aligner.counts.void == 1


def test_a_restart_makes_open_steps_of_the_older_incarnation_void_from_its_first_step_on():
    feed = Feed(2)
    for step in (1, 2, 3):
        feed.log(0, step, loss=float(step))
    feed.aligner.join(0, 2, world_size=2)
    feed.log(0, 2, incarnation=2, loss=20.0)
    feed.log(0, 3, incarnation=2, loss=30.0)
    for step in (1, 2, 3):
        feed.log(1, step, loss=0.0)
    assert feed.steps == [1, 2, 3]
    assert [m.columns[Column.LAST, 0, 0] for m in feed.closed] == [1.0, 20.0, 30.0]
    assert not any(m.session_start for m in feed.closed)


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_restart_of_all_ranks_opens_closed_steps_again_and_says_so_once(ahead):
    feed = Feed(2)
    for step in range(1, 6):
        for rank in (0, 1):
            feed.log(rank, step, loss=0.0)
    for rank in (0, 1):
        feed.aligner.join(rank, 2, world_size=2)
    for step in range(3, 3 + ahead):
        feed.log(0, step, incarnation=2, loss=1.0)
    for step in range(3, 8):
        for rank in (0, 1):
            if rank == 1 or step >= 3 + ahead:
                feed.log(rank, step, incarnation=2, loss=1.0)
    assert feed.steps == [1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    assert [m.step for m in feed.closed if m.session_start] == [3]
    assert all((m.columns[Column.LAST] == 1.0).all() for m in feed.closed[5:])
    assert feed.aligner.counts.reopened == 1


def test_a_rank_that_joins_beyond_the_world_size_makes_the_matrix_grow():
    feed = Feed(1)
    feed.log(0, 1)
    feed.aligner.join(2, 1, world_size=3)
    feed.aligner.join(1, 1, world_size=3)
    for rank in range(3):
        feed.log(rank, 2)
    assert [m.columns.shape[1] for m in feed.closed] == [1, 3]


def test_a_restart_with_fewer_ranks_does_not_wait_for_those_that_are_no_more():
    feed = Feed(3)
    for rank in range(3):
        feed.log(rank, 1)
    for rank in range(2):
        feed.aligner.join(rank, 2, world_size=2)
    for rank in range(2):
        feed.log(rank, 2, incarnation=2)
    assert feed.steps == [1, 2]


def test_it_is_known_what_ranks_had_written_that_a_smaller_world_lacked_until_they_come_back():
    feed = Feed(3)
    for step in range(1, 10):
        for rank in range(3):
            feed.log(rank, step)
    for incarnation, world_size, first, void in (
        (2, 2, 6, {2: [(6, None)]}),
        (3, 3, 8, {2: [(6, 7)]}),
        (4, 1, 9, {1: [(9, None)], 2: [(6, 7), (9, None)]}),
        (5, 3, 7, {1: [], 2: [(6, 6)]}),
    ):
        for rank in range(world_size):
            feed.aligner.join(rank, incarnation, world_size=world_size)
        for rank in range(world_size):
            feed.log(rank, first, incarnation=incarnation)
        assert feed.aligner.void == void


def test_a_resumed_aligner_goes_on_after_the_last_closed_step_and_opens_nothing_again():
    feed = Feed(2)
    feed.aligner = Aligner(world_size=2)
    feed.aligner.table.add(map(Tag, TAGS))
    feed.aligner.resume(5, {0: 1, 1: 1})
    for rank in (0, 1):
        assert feed.aligner.join(rank, 1, world_size=2)
        assert not feed.aligner.join(rank, 0, world_size=2)
    assert feed.log(0, 5) is Admission.LATE
    for rank in (0, 1):
        feed.log(rank, 6)
    assert feed.steps == [6]
    assert feed.aligner.counts.reopened == 0
