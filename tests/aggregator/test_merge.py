"""The merge across ranks equals numpy's own statistics of the values that the windows stand for."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import plain_numbers

from aggregator.merge import merge
from aggregator.step import StepMatrix
from rankside import window
from rankside.tags import Tag

pytestmark = pytest.mark.filterwarnings("error")


@st.composite
def windows(draw):
    """Values by [rank][tag], a list for each window; an empty one where the rank does not report the tag."""
    ranks, tags = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    return [[draw(st.lists(plain_numbers, max_size=4)) for _ in range(tags)] for _ in range(ranks)]


def matrix_of(values):
    ranks, tags = len(values), len(values[0])
    columns = window.absent((ranks, tags))
    for r, row in enumerate(values):
        for t, numbers in enumerate(row):
            for number in numbers:
                columns[:, r, t] = window.combine(columns[:, [r], t], window.single(np.array([number])))[:, 0]
    return StepMatrix(1, [Tag(f"t{t}") for t in range(tags)], np.arange(tags), columns)


@given(windows())
def test_the_merge_of_windows_is_numpys_over_all_values_in_them(values):
    merged = merge(matrix_of(values))
    for t in range(len(values[0])):
        ranks = [np.array(row[t], np.longdouble) for row in values]
        everything = np.concatenate(ranks)
        finite = np.where(np.isfinite(everything), everything, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns where nothing is finite
            expected = [f(finite) if len(finite) else np.nan for f in (np.nanmean, np.nanstd)]
        assert np.allclose(
            [merged.mean[t], merged.std[t]], np.array(expected, float), rtol=1e-9, atol=1e-6, equal_nan=True
        )
        low = [min((v for v in r if np.isfinite(v)), default=np.inf) for r in ranks]
        high = [max((v for v in r if np.isfinite(v)), default=-np.inf) for r in ranks]
        nobody = not np.isfinite(everything).any()
        assert merged.rank_of_min[t] == (-1 if nobody else low.index(min(low)))
        assert merged.rank_of_max[t] == (-1 if nobody else high.index(max(high)))
        assert np.array_equal(merged.minimum[t], np.nan if nobody else float(min(low)), equal_nan=True)
        assert np.array_equal(merged.maximum[t], np.nan if nobody else float(max(high)), equal_nan=True)
        assert merged.ranks_seen[t] == sum(len(r) > 0 for r in ranks)
        assert merged.nonfinite[t] == (~np.isfinite(everything)).sum()


def test_a_nan_hides_no_other_rank_and_is_hidden_by_none():
    merged = merge(matrix_of([[[1.0]], [[np.nan]], [[3.0]], [[]]]))
    assert (merged.mean[0], merged.std[0], merged.ranks_seen[0], merged.nonfinite[0]) == (2.0, 1.0, 3, 1)


def test_of_equal_extremes_the_lowest_rank_is_named():
    merged = merge(matrix_of([[[2.0]], [[1.0]], [[1.0]], [[2.0]]]))
    assert (merged.rank_of_min[0], merged.rank_of_max[0]) == (1, 0)


def test_the_largest_float32_numbers_do_not_overflow():
    largest = float(np.finfo(np.float32).max)
    merged = merge(matrix_of([[[largest]], [[-largest]]]))
    assert (merged.mean[0], merged.std[0]) == (0.0, largest)
