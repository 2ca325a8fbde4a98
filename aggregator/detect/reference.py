"""What a rank is compared with, and in what measure: a robust centre of its peers at the same step, without itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

# The median absolute deviation of a normal variable times this is its standard deviation.
MAD_TO_SIGMA = 1.4826
_SMALLEST_NORM = 1e-30


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


def median_of_others(values: Float64Array) -> Float64Array:
    """Return for each rank the median of the others of its group.

    values: shape (G, S, T), float64, NaN where a rank is not counted. Returns the same shape; NaN where there
    is no other rank.
    """
    ordered = np.sort(values, axis=1)  # NaN last
    counted = ~np.isnan(values)
    count = np.sum(counted, axis=1, keepdims=True)

    def nth(place: Int64Array) -> Float64Array:
        return np.take_along_axis(ordered, np.clip(place, 0, values.shape[1] - 1), axis=1)

    # Without a rank on one side of the middle, the middle moves by half a place to the other side.
    before, middle, after = nth((count - 2) // 2), nth(count // 2), nth((count + 1) // 2)
    odd = count % 2 == 1
    below = 0.5 * (np.where(odd, middle, before) + before)
    above = 0.5 * (middle + after)
    within = 0.5 * (before + after)
    result = np.where(values > np.where(odd, middle, before), below, above)
    result = np.where(odd & (values == middle), within, result)
    result = np.where(counted, result, 0.5 * (nth((count - 1) // 2) + middle))
    return np.where(count > counted, result, np.nan)


def leave_one_out(values: Float64Array, sigma: Float64Array) -> Float64Array:
    """Return for each rank the centre of the others of its group.

    The centre is one step of Huber's M-estimator (Huber, 1964) from the median: the median plus the mean of
    the deviations from it, each limited to two of its standard deviations and weighted by its precision, 1 /
    sigma^2. With few peers this has much less noise than the median of the others, and a rank that is far
    away moves it by no more than 2 sigma / (n - 1).

    values: shape (G, S, T), float64, NaN where a rank is not to be counted. sigma: the same shape, each
    rank's standard deviation; 0 where values do not vary. Returns the same shape; NaN where no other rank is
    counted.
    """
    counted = ~np.isnan(values)
    centre = median(values)[:, None]
    pull = np.where(counted, np.clip(values - centre, -2 * sigma, 2 * sigma), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(counted, np.where(sigma > 0, sigma**-2.0, 1.0), 0.0)
        pull *= weight
        others = weight.sum(axis=1, keepdims=True) - weight
        others = np.where(counted.sum(axis=1, keepdims=True) > counted, others, np.nan)
        result: Float64Array = centre + (pull.sum(axis=1, keepdims=True) - pull) / others
    return result


def comparable(values: Float64Array, names: list[str]) -> Float64Array:
    """Return the values, shape (W, T), with norms as their logarithms: the noise of a norm is a factor."""
    norms = np.array(["norm" in name for name in names], dtype=np.bool_)
    if not norms.any():
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log(np.maximum(values, _SMALLEST_NORM))
    return np.where(norms & ~(values < 0).any(axis=0), logarithms, values)
