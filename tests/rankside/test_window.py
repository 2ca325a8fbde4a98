"""Window statistics: any partition, combined in any order, is one computation over all values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import across_ranks, plain_numbers

from rankside import window
from rankside.window import Column

values = st.lists(plain_numbers, min_size=1, max_size=30)


def combine_in_some_order(data, parts):
    """Combine neighbours in a drawn order until one is left, so that LAST stays the last."""
    parts = list(parts)
    while len(parts) > 1:
        i = data.draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [window.combine(parts[i], parts[i + 1])]
    return parts[0]


@given(values, st.data())
def test_any_partition_in_any_order_is_one_computation_over_all_values(numbers, data):
    result = combine_in_some_order(data, [window.single(np.array([v])) for v in numbers])[:, 0]
    mean, std, low, high = across_ranks(numbers)
    finite = sum(map(np.isfinite, numbers))
    assert result[Column.COUNT] == finite
    assert result[Column.NONFINITE] == len(numbers) - finite
    assert np.array_equal(result[Column.LAST], numbers[-1], equal_nan=True)
    assert np.array_equal(result[[Column.MIN, Column.MAX]], [low, high], equal_nan=True)
    # A few roundings a value, relative to the largest magnitude that takes part.
    scale = max((abs(v) for v in numbers if np.isfinite(v)), default=0.0)
    tolerance = 4 * len(numbers) * np.finfo(np.float64).eps
    if finite:
        assert result[Column.MEAN] == pytest.approx(mean, rel=0, abs=tolerance * scale)
        # The mean's rounding enters the squares with the spread as its factor.
        squares = std**2 * finite
        assert result[Column.M2] == pytest.approx(squares, rel=1e-9, abs=finite * (tolerance * scale) ** 2)
        assert result[Column.M2] >= 0
    else:
        assert np.isnan(result[[Column.MEAN, Column.M2, Column.MIN, Column.MAX]]).all()


@given(values, st.randoms(use_true_random=False))
def test_the_order_of_the_parts_does_not_matter_but_for_the_last_value(numbers, chance):
    shuffled = chance.sample(numbers, len(numbers))
    results = []
    for order in (numbers, shuffled):
        total = window.absent((1,))
        for v in order:
            total = window.combine(total, window.single(np.array([v])))
        results.append(total[: Column.LAST, 0])
    assert np.allclose(*results, rtol=1e-9, atol=1e-9 * 1e6**2 * 1e-3, equal_nan=True)


def test_an_absent_window_changes_nothing_on_either_side():
    some = window.single(np.array([1.5, np.nan, np.inf]))
    nothing = window.absent((3,))
    assert np.array_equal(window.combine(some, nothing), some, equal_nan=True)
    assert np.array_equal(window.combine(nothing, some), some, equal_nan=True)
    assert np.array_equal(window.combine(nothing, nothing), nothing, equal_nan=True)


def test_columns_are_combined_side_by_side_in_any_shape():
    values = np.arange(24.0).reshape(4, 2, 3)
    total = window.single(values[0])
    for v in values[1:]:
        total = window.combine(total, window.single(v))
    assert np.allclose(total[Column.MEAN], values.mean(axis=0))
    assert np.allclose(total[Column.M2], values.var(axis=0) * 4)


def test_a_small_spread_on_a_large_mean_keeps_its_digits():
    numbers = 1e6 + np.arange(1000) / 1024  # exact in float64
    total = window.single(numbers[:1])
    for v in numbers[1:]:
        total = window.combine(total, window.single(np.array([v])))
    assert total[Column.M2, 0] == pytest.approx(numbers.var() * 1000, rel=1e-9)
