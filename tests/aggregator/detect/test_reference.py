import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aggregator.detect.reference import leave_one_out, median, median_of_others

grids = st.lists(
    st.lists(st.one_of(st.floats(-100, 100), st.just(float("nan"))), min_size=5, max_size=5),
    min_size=1,
    max_size=4,
)


@given(grids)
def test_the_median_is_that_of_the_values_that_are_there(rows):
    grid = np.array(rows)[:, :, None]
    expected = [
        np.median([v for v in row if not np.isnan(v)]) if not np.isnan(row).all() else np.nan for row in rows
    ]
    np.testing.assert_allclose(median(grid)[:, 0], expected)


@given(grids, st.floats(0.5, 50))
def test_each_rank_is_compared_with_the_others_alone(rows, sigma):
    grid = np.array(rows)[:, :, None]
    found = leave_one_out(grid, np.full(grid.shape, sigma))
    for row, result in zip(rows, found[:, :, 0], strict=True):
        known = [v for v in row if not np.isnan(v)]
        for rank in range(len(row)):
            others = [v for place, v in enumerate(row) if place != rank and not np.isnan(v)]
            if not others:
                assert np.isnan(result[rank])
                continue
            middle = np.median(known)
            pulls = [min(max(v - middle, -2 * sigma), 2 * sigma) for v in others]
            np.testing.assert_allclose(result[rank], middle + np.mean(pulls), atol=1e-9)


def test_a_rank_that_is_far_away_moves_the_others_reference_by_a_bounded_amount():
    near = np.array([0.0, 0.1, -0.1, 0.05])[None, :, None]
    far = near.copy()
    far[0, 3] = 1e9
    sigma = np.full(near.shape, 0.1)
    moved = leave_one_out(far, sigma) - leave_one_out(near, sigma)
    assert np.abs(moved[0, :3]).max() < 0.15


@given(grids)
def test_the_median_of_the_others_leaves_out_each_rank_in_turn(rows):
    grid = np.array(rows)[:, :, None]
    found = median_of_others(grid)[:, :, 0]
    for row, result in zip(rows, found, strict=True):
        for rank, value in enumerate(row):
            others = [v for place, v in enumerate(row) if place != rank and not np.isnan(v)]
            if not np.isnan(value):
                np.testing.assert_allclose(result[rank], np.median(others) if others else np.nan)
