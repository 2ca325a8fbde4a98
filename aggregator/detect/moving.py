"""Sums over the last scores of every rank and tag: what is small and lasts is found when it has the right age.

Among tests over a window, moving sums miss least where there is a deadline (Guépié, Fillatre and Nikiforov, 2012). A
sum may also count the score before its first one, with the weight that a jump has there: it is then the likelihood
ratio of a jump of that age (Willsky and Jones, 1976; Basseville and Nikiforov, 1993). Every onset comes to that age
once, so that none need be searched for.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.detect.state import grown

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Scores are kept in a byte each, up to eight: rounding to these parts of one adds 0.0003 to their variance.
_PARTS = 16
_LARGEST = 127
_PHIS = 101  # autocorrelations, in hundredths, for which there are weights


class _Window(NamedTuple):
    """A sum over so many scores, its part of the false alarms, and if it counts the jump before them."""

    scores: int
    share: float
    jump: bool


# The longest sum has the hardest deadline to keep and gets most of the false alarms. In the long ones a jump tells
# little beside what comes after it, and looking for one would cost more than it tells.
_WINDOWS = (_Window(60, 0.3, jump=True), _Window(100, 0.1, jump=False), _Window(400, 0.6, jump=False))


class MovingSums:
    """The sums of every rank and tag, over the tag's own last scores; they keep some 420 bytes of each."""

    def __init__(self, false_alarms: float) -> None:
        """Allow so many false alarms per score of healthy training, over all sums and both sides."""
        weights = [
            [_weights(window, phi / (_PHIS - 1), window.share * false_alarms / 2) for phi in range(_PHIS)]
            for window in _WINDOWS
        ]
        self._weights = np.moveaxis(np.array(weights), 2, 1) / _PARTS
        self.forget()

    def forget(self) -> None:
        """Begin anew everywhere."""
        self._ring = np.zeros((max(window.scores for window in _WINDOWS), 0, 0), dtype=np.int8)
        self._sums = np.zeros((len(_WINDOWS), 0, 0), dtype=np.int32)
        self._taken = np.zeros((1, 1, 0), dtype=np.int64)

    def observe(self, score: Float64Array, phi: Float64Array, ids: Int64Array) -> Float64Array:
        """Take the scores of one step; return the largest of the sums as a fraction of its height, shape (W, T).

        score: shape (W, T), 0 where there is none. phi: shape (W, T), the autocorrelation that was taken out of
        them. ids: shape (T,), places in the tag table, for which there is room.
        """
        newest = np.clip(np.rint(score * _PARTS), -_LARGEST, _LARGEST).astype(np.int8)
        place = self._taken[0, 0, ids]
        hundredths = np.rint(phi * (_PHIS - 1)).astype(np.int64)
        largest = np.zeros_like(score)
        for total, window, (first, later) in zip(self._sums, _WINDOWS, self._weights, strict=True):
            leaving = self._ring[(place - window.scores) % len(self._ring), :, ids].T
            within = total[:, ids] + newest - leaving
            total[:, ids] = within
            height = later[hundredths] * within
            if window.jump:
                height += first[hundredths] * leaving
            largest = np.where(np.abs(height) > np.abs(largest), height, largest)
        self._ring[place % len(self._ring), :, ids] = newest.T
        self._taken[0, 0, ids] += 1
        return largest

    def clear(self, ranks: Int64Array, places: Int64Array) -> None:
        """Begin anew for these ranks and places in the tag table, pair by pair."""
        self._ring[:, ranks, places] = 0
        self._sums[:, ranks, places] = 0

    def grow(self, ranks: int, tags: int) -> None:
        """Make room for so many ranks and tags."""
        self._ring = grown(self._ring, ranks, tags)
        self._sums = grown(self._sums, ranks, tags)
        self._taken = grown(self._taken, 1, tags)


def _weights(window: _Window, phi: float, false_alarms: float) -> tuple[float, float]:
    """Return what the score before the sum and those in it count, so that the height is passed at 1.

    Whitening by x[t] - phi x[t-1] leaves of a jump 1, and 1 - phi at each later score.
    """
    first, later = (1.0, 1 - phi) if window.jump else (0.0, 1.0)
    power = first * first + window.scores * later * later
    following = first * later + (window.scores - 1) * later * later
    height = math.sqrt(power) * moving_threshold(1 - following / power, false_alarms)
    return first / height, later / height


def moving_threshold(fall: float, false_alarms: float) -> float:
    """Return the height, in standard deviations, that a moving sum passes upwards so often a step.

    fall: by how much its correlation falls from one step to the next, 1 / n for a sum of n scores. The rate for
    normal scores is h phi(h) fall nu(h sqrt(2 fall)) (Siegmund, 1985), with nu as in Siegmund and Yakir (2007).
    """
    normal = NormalDist()
    low, high = 1.0, 1e4
    while high - low > 1e-6:
        height = 0.5 * (low + high)
        density = math.exp(-0.5 * height * height) / math.sqrt(2 * math.pi)
        half = height * math.sqrt(fall / 2)
        nu = (normal.cdf(half) - 0.5) / (half * (half * normal.cdf(half) + normal.pdf(half)))
        rate = height * density * fall * nu
        low, high = (height, high) if rate > false_alarms else (low, height)
    return high
