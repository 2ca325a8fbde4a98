"""What follows from a parallel layout for a rank: which samples are its own, and whether it has the loss."""

from __future__ import annotations

import mindspore
import pytest

from rankside.training.parallel_layout import returns_loss, sample_share


@pytest.fixture
def context():
    """Returns a function that sets MindSpore's parallel context."""
    yield mindspore.set_auto_parallel_context
    mindspore.reset_auto_parallel_context()


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"parallel_mode": "stand_alone"}, 1.0),
        ({"parallel_mode": "data_parallel"}, 1.0),
        ({"full_batch": True}, 1 / 8),
        ({"dataset_strategy": "full_batch"}, 1 / 8),
        ({"dataset_strategy": ((4, 1), (4, 1))}, 4 / 8),
        ({"dataset_strategy": "data_parallel"}, 1.0),
        ({"dataset_strategy": "data_parallel", "pipeline_stages": 2}, 4 / 8),
    ],
)
def test_the_samples_that_all_ranks_count_add_up_to_those_of_the_job(context, settings, share):
    context(**{"parallel_mode": "semi_auto_parallel", **settings})
    assert sample_share(8) == share


def test_of_pipeline_stages_the_last_one_has_the_loss(context):
    context(parallel_mode="semi_auto_parallel", pipeline_stages=4)
    assert [returns_loss(rank, 8) for rank in range(8)] == [False] * 6 + [True] * 2


def test_without_stages_every_rank_has_the_loss():
    assert all(returns_loss(rank, 8) for rank in range(8))


def test_of_stages_that_are_passed_there_and_back_the_first_one_has_the_loss(context):
    context(
        parallel_mode="semi_auto_parallel",
        pipeline_stages=4,
        pipeline_config={"pipeline_interleave": True, "pipeline_scheduler": "zero_bubble_v"},
    )
    assert [returns_loss(rank, 8) for rank in range(8)] == [True] * 2 + [False] * 6
