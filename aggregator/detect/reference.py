"""What a rank is compared with: a robust centre of its peers at the same step, without the rank itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

# The median absolute deviation of a normal variable times this is its standard deviation.
MAD_TO_SIGMA = 1.4826


def median(values: Float64Array) -> Float64Array:
    """Return the median along the second axis, of the values that are not NaN.

    values: shape (G, S, T), float64. Returns shape (G, T), NaN where all are NaN.
    """
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.sum(~np.isnan(values), axis=1, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=1)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[1] - 1), axis=1)
    middle: Float64Array = 0.5 * (low + high)[:, 0]
    return middle


def leave_one_out(values: Float64Array, spread: Float64Array) -> Float64Array:
    """Return for each rank the centre of the others of its group.

    The centre is one step of Huber's M-estimator (Huber, 1964) from the median: the median plus the mean of
    the deviations from it, each limited to two standard deviations. With few peers this has much less noise
    than the median of the others, and a rank that is far away moves it by no more than 2 sigma / (n - 1).

    values: shape (G, S, T), float64, NaN where a rank is not to be counted. spread: shape (G, T), the
    standard deviation within the group. Returns shape (G, S, T); NaN where fewer than one other rank is
    counted.
    """
    counted = ~np.isnan(values)
    centre = median(values)[:, None]
    limit = 2 * spread[:, None]
    pull = np.where(counted, np.clip(values - centre, -limit, limit), 0.0)
    others = counted.sum(axis=1, keepdims=True) - counted
    total = pull.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Float64Array = np.where(others > 0, centre + (total - pull) / others, np.nan)
    return result
