"""A rank's place in the parallel layout, against the communication groups that such a layout has."""

from __future__ import annotations

import pytest

from rankside.layout import coordinates, parse


def test_every_rank_has_a_place_of_its_own():
    sizes = {"dp": 4, "tp": 2, "pp": 3, "cp": 2}
    places = {tuple(sorted(coordinates(rank, sizes).items())) for rank in range(48)}
    assert len(places) == 48


def test_stages_are_contiguous_and_tensor_parallel_ranks_are_neighbours():
    sizes = {"dp": 2, "tp": 2, "pp": 2}
    assert [coordinates(rank, sizes)["pp"] for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [coordinates(rank, sizes)["dp"] for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [coordinates(rank, sizes)["tp"] for rank in range(8)] == [0, 1, 0, 1, 0, 1, 0, 1]


def test_experts_are_spread_over_consecutive_ranks_of_a_stage():
    assert [coordinates(rank, {"dp": 4, "pp": 2, "ep": 2})["ep"] for rank in range(8)] == [0, 1] * 4


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [({"dp": 2}, 2), ({"dp": 0}, 0), ({"data": 2}, 0), ({"dp": 3, "ep": 2}, 0)],
)
def test_what_is_no_layout_is_refused(sizes, rank):
    with pytest.raises(ValueError, match=r"layout|dimension|divide"):
        coordinates(rank, sizes)


def test_sizes_are_read_from_a_text():
    assert parse("dp=4, tp=2,pp=1") == {"dp": 4, "tp": 2, "pp": 1}


@pytest.mark.parametrize("text", ["", "dp", "dp=", "dp=-1", "dp=x", "dq=2", "dp=2;tp=2"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"sizes|dimensions|size"):
        parse(text)
