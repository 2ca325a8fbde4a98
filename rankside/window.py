"""Reduces the values of one reporting window to seven numbers a tag.

Moments combine by the parallel update of Chan, Golub and LeVeque (1983), so that any partition of the values,
combined in any order, gives the figures of one computation over all of them, up to rounding.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]


class Column(IntEnum):
    """Index of each statistic along the first axis of a block's columns.

    COUNT: finite values; NONFINITE: NaN and infinite ones; MEAN, M2 (sum of squared deviations from the mean),
    MIN and MAX: over the finite values; LAST: the last value, finite or not.
    A tag that a row does not report has COUNT and NONFINITE zero and NaN elsewhere.
    """

    COUNT = 0
    NONFINITE = 1
    MEAN = 2
    M2 = 3
    MIN = 4
    MAX = 5
    LAST = 6


N_COLUMNS = len(Column)


def single(values: Float64Array) -> Float64Array:
    """Return the statistics of windows that hold one value each.

    values: shape (..., tags), float64. Returns shape (7, ..., tags), float64, ordered as `Column`.
    """
    columns = np.empty((N_COLUMNS, *values.shape))
    finite = np.isfinite(values)
    columns[Column.COUNT] = finite
    columns[Column.NONFINITE] = ~finite
    columns[Column.MEAN] = columns[Column.MIN] = columns[Column.MAX] = np.where(finite, values, np.nan)
    columns[Column.M2] = np.where(finite, 0.0, np.nan)
    columns[Column.LAST] = values
    return columns


def combine(older: Float64Array, newer: Float64Array) -> Float64Array:
    """Return the statistics of two windows taken together (Chan, Golub and LeVeque, 1983).

    older, newer: shape (7, ...), float64, `newer` holding the later values. Returns the same shape.
    """
    count = older[Column.COUNT] + newer[Column.COUNT]
    seen_older = older[Column.COUNT] > 0
    seen_newer = newer[Column.COUNT] > 0
    both = seen_older & seen_newer
    result = np.where(seen_older, older, newer)
    with np.errstate(invalid="ignore"):
        delta = newer[Column.MEAN] - older[Column.MEAN]
        weight = newer[Column.COUNT] / np.maximum(count, 1)
        mean = older[Column.MEAN] + delta * weight
        squares = older[Column.M2] + newer[Column.M2] + delta * delta * older[Column.COUNT] * weight
    result[Column.COUNT] = count
    result[Column.NONFINITE] = older[Column.NONFINITE] + newer[Column.NONFINITE]
    result[Column.MEAN] = np.where(both, mean, result[Column.MEAN])
    result[Column.M2] = np.where(both, squares, result[Column.M2])
    result[Column.MIN] = np.fmin(older[Column.MIN], newer[Column.MIN])
    result[Column.MAX] = np.fmax(older[Column.MAX], newer[Column.MAX])
    reported = newer[Column.COUNT] + newer[Column.NONFINITE] > 0
    result[Column.LAST] = np.where(reported, newer[Column.LAST], older[Column.LAST])
    return result


def absent(shape: tuple[int, ...]) -> Float64Array:
    """Return the statistics of windows without any value: shape (7, *shape), float64."""
    columns = np.full((N_COLUMNS, *shape), np.nan)
    columns[Column.COUNT] = columns[Column.NONFINITE] = 0.0
    return columns
