"""A sequential test for a shift of the mean: small lasting shifts are found, one noisy step is not.

Several cumulative sums (Page, 1954) run side by side, each best for shifts of twice its allowance; thresholds
follow from the rate of false alarms that is allowed (Siegmund, 1985).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.detect.whiten import grown

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

ALLOWANCES = (0.15, 0.35, 1.0)


class Alarm(NamedTuple):
    """Where the test stands; all of shape (W, T).

    strength: float64, the largest sum as a fraction of its threshold: 1 and above is an alarm; negative for a
    shift downwards. steps: int64, for how many steps that sum has been above zero: the age of the shift.
    """

    strength: Float64Array
    steps: npt.NDArray[np.int64]


class ShiftTest:
    """Two-sided cumulative sums of independent scores of mean 0 and variance 1."""

    def __init__(self, false_alarms: float) -> None:
        """false_alarms: alarms allowed per score in healthy training, over all sums and both sides."""
        share = false_alarms / (2 * len(ALLOWANCES))
        self._thresholds = [threshold(allowance, share) for allowance in ALLOWANCES]
        self._sums = np.zeros((2 * len(ALLOWANCES), 0, 0))
        self._ages = np.zeros_like(self._sums)

    def observe(self, score: Float64Array, widening: Float64Array, ids: npt.NDArray[np.int64]) -> Alarm:
        """Take the scores of one step.

        score: shape (W, T), NaN where there is none. widening: shape (W, T): factor by which the thresholds
        are raised while little is known. ids: shape (T,), places in the tag table.
        """
        tags = int(ids.max(initial=-1)) + 1
        self._sums = grown(self._sums, len(score), tags)
        self._ages = grown(self._ages, len(score), tags)
        sums, ages = self._sums[:, :, ids], self._ages[:, :, ids]
        seen = ~np.isnan(score)
        step = np.where(seen, score, 0.0)
        strength = np.zeros(score.shape)
        steps = np.zeros(score.shape, dtype=np.int64)
        for index, (allowance, limit) in enumerate(zip(ALLOWANCES, self._thresholds, strict=True)):
            for side, sign in ((2 * index, 1.0), (2 * index + 1, -1.0)):
                total = np.maximum(sums[side] + np.where(seen, sign * step - allowance, 0.0), 0.0)
                sums[side] = total
                ages[side] = np.where(total > 0, ages[side] + 1, 0.0)
                relative = total / (limit * widening)
                larger = relative > np.abs(strength)
                strength = np.where(larger, sign * relative, strength)
                steps = np.where(larger, ages[side].astype(np.int64), steps)
        self._sums[:, :, ids], self._ages[:, :, ids] = sums, ages
        return Alarm(strength, steps)

    def clear(self, where: BoolArray, ids: npt.NDArray[np.int64]) -> None:
        """Begin anew for the ranks and tags where `where`, shape (W, T), is true."""
        for held in (self._sums, self._ages):
            part = held[:, :, ids]
            part[:, where] = 0.0
            held[:, :, ids] = part

    def forget(self) -> None:
        """Begin anew everywhere."""
        self._sums = np.zeros((2 * len(ALLOWANCES), 0, 0))
        self._ages = np.zeros_like(self._sums)


def threshold(allowance: float, false_alarms: float) -> float:
    """Return the height at which a one-sided sum has this many false alarms a step (Siegmund, 1985).

    The mean time to a false alarm is (exp(2 k b) - 2 k b - 1) / (2 k^2), with k the allowance and b the
    height plus 1.166, for normal scores of mean 0 and variance 1.
    """
    low, high = 0.0, 1e4
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        exponent = min(2 * allowance * (middle + 1.166), 700.0)
        if (math.exp(exponent) - exponent - 1) / (2 * allowance**2) < 1 / false_alarms:
            low = middle
        else:
            high = middle
    return high
