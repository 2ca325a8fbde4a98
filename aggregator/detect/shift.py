"""A sequential test for a shift of the mean: small lasting shifts are found, one noisy step is not.

Two kinds of statistics run side by side on scores of mean 0 and variance 1, on both sides of zero. The
likelihood ratio of a jump finds what is large at once. Moving sums over the last steps find what is small; among
sums over a window they miss least where there is a deadline (Guépié, Fillatre and Nikiforov, 2012). Thresholds
follow from the rate of false alarms that is allowed (Siegmund, 1985). A cumulative sum (Page, 1954) dates what the
moving sums find.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.detect.state import grown

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

BLOCK_STEPS = 16
_BLOCKS = 25
# The jump that the likelihood ratio is made for, in standard deviations of the distance from the peers: three of the
# rank's own, less the noise of a few peers and what the bounds on scores take away.
_JUMP = 2.0
_JUMP_SHARE = 0.25
_SUSPECT = 0.5


class _Moving(NamedTuple):
    """A moving sum: its length in blocks, and its part of the false alarms."""

    blocks: int
    share: float


_ALLOWANCE = 0.15
# The longest moving sum has the hardest deadline to keep and gets most of the false alarms.
_MOVINGS = (_Moving(3, 0.05), _Moving(6, 0.1), _Moving(_BLOCKS, 0.6))


class Alarm(NamedTuple):
    """Where the test stands; all of shape (W, T).

    strength: float64, the largest sum as a fraction of its threshold: 1 and above is an alarm; negative for a
    shift downwards. steps: int64, for how many steps that sum has been above zero: the age of the shift.
    """

    strength: Float64Array
    steps: npt.NDArray[np.int64]


class ShiftTest:
    """The test for every rank and tag; it keeps some 40 numbers of each."""

    def __init__(self, false_alarms: float) -> None:
        """Allow so many false alarms per score of healthy training, over all statistics and both sides."""
        self._moving_limits = [
            moving_threshold(each.blocks * BLOCK_STEPS, each.share * false_alarms / 2) for each in _MOVINGS
        ]
        # No more than exp(-h) of healthy steps bring a log likelihood ratio to h, whatever it is made of (Ville, 1939);
        # of these about every second at most is the first of its kind, and there are two sides.
        self._jump_limit = math.log(1 / (_JUMP_SHARE * false_alarms))
        self.forget()

    def forget(self) -> None:
        """Begin anew everywhere."""
        self._sums = np.zeros((2, 0, 0))  # upwards and downwards
        self._ages = np.zeros_like(self._sums)
        self._jumps = np.zeros((4, 0, 0))  # upwards and downwards; then how old each is
        self._blocks = np.zeros((_BLOCKS, 0, 0))  # a ring: the newest block replaces the oldest
        self._totals = np.zeros((len(_MOVINGS), 0, 0))
        self._position = 0
        self._strength = np.zeros((1, 0, 0))

    def observe(
        self, score: Float64Array, phi: Float64Array, widening: Float64Array, ids: npt.NDArray[np.int64]
    ) -> Alarm:
        """Take the scores of one step.

        score: shape (W, T), NaN where there is none. phi: shape (W, T), the autocorrelation that was taken
        out of them. widening: shape (W, T): factor by which the thresholds are raised while little is known.
        ids: shape (T,), places in the tag table.
        """
        self._grow(len(score), ids)
        step = np.nan_to_num(score)
        seen = ~np.isnan(score)
        self._cumulate(step, seen, ids)
        strength, steps = self._jump(step, seen, phi, ids)
        strength /= widening
        moved = self._move(step, ids) / np.sqrt(widening)
        larger = np.abs(moved) > np.abs(strength)
        if larger.any():
            dated = np.where(moved > 0, self._ages[0][:, ids], self._ages[1][:, ids])
            strength, steps = np.where(larger, moved, strength), np.where(larger, dated, steps)
        self._strength[0][:, ids] = strength
        return Alarm(strength, steps.astype(np.int64))

    def suspects(self, ranks: int, ids: npt.NDArray[np.int64]) -> BoolArray:
        """Return where an alarm may be on its way, shape (W, T): a statistic has come half of the way."""
        self._grow(ranks, ids)
        halfway: BoolArray = np.abs(self._strength[0][:, ids]) >= _SUSPECT
        return halfway

    def _cumulate(self, step: Float64Array, seen: BoolArray, ids: npt.NDArray[np.int64]) -> None:
        sums, ages = self._sums[:, :, ids], self._ages[:, :, ids]
        for side, sign in ((0, 1.0), (1, -1.0)):
            sums[side] = np.maximum(sums[side] + np.where(seen, sign * step - _ALLOWANCE, 0.0), 0.0)
            ages[side] = np.where(sums[side] > 0, ages[side] + 1, 0.0)
        self._sums[:, :, ids], self._ages[:, :, ids] = sums, ages

    def _jump(
        self, step: Float64Array, seen: BoolArray, phi: Float64Array, ids: npt.NDArray[np.int64]
    ) -> tuple[Float64Array, Float64Array]:
        """Return the log likelihood ratio of a jump as a fraction of its threshold, and its age, shape (W, T).

        In whitened scores a jump by d standard deviations is d / sqrt(1 - phi^2) at first and (1 - phi) times
        that from then on: with autocorrelated noise the first step tells more than many later ones.
        """
        jumps = self._jumps[:, :, ids]
        first = _JUMP / np.sqrt(1 - phi * phi)
        later = first * (1 - phi)
        strength, steps = np.zeros(step.shape), np.zeros(step.shape)
        for side, sign in ((0, 1.0), (1, -1.0)):
            going_on = jumps[side] + later * (sign * step - 0.5 * later)
            begun = first * (sign * step - 0.5 * first)
            ratio = np.where(seen, np.maximum(np.maximum(going_on, begun), 0.0), jumps[side])
            age = np.where(
                begun > np.maximum(going_on, 0.0), 1.0, np.where(ratio > 0, jumps[side + 2] + 1, 0.0)
            )
            jumps[side], jumps[side + 2] = ratio, np.where(seen, age, jumps[side + 2])
            larger = ratio > np.abs(strength)
            strength, steps = (
                np.where(larger, sign * ratio, strength),
                np.where(larger, jumps[side + 2], steps),
            )
        self._jumps[:, :, ids] = jumps
        return strength / self._jump_limit, steps

    def _move(self, step: Float64Array, ids: npt.NDArray[np.int64]) -> Float64Array:
        """Return the largest of the moving sums as a fraction of its threshold, shape (W, T)."""
        block = self._position // BLOCK_STEPS
        if self._position % BLOCK_STEPS == 0:
            for index, each in enumerate(_MOVINGS):
                self._totals[index] -= self._blocks[(block - each.blocks) % _BLOCKS]
            self._blocks[block % _BLOCKS] = 0.0
        self._position += 1
        self._blocks[block % _BLOCKS][:, ids] += step
        largest = np.zeros(step.shape)
        for total, each, limit in zip(self._totals, _MOVINGS, self._moving_limits, strict=True):
            total[:, ids] += step
            relative = total[:, ids] / (limit * math.sqrt(each.blocks * BLOCK_STEPS))
            largest = np.where(np.abs(relative) > np.abs(largest), relative, largest)
        return largest

    def _grow(self, ranks: int, ids: npt.NDArray[np.int64]) -> None:
        tags = int(ids.max(initial=-1)) + 1
        self._sums = grown(self._sums, ranks, tags)
        self._ages = grown(self._ages, ranks, tags)
        self._jumps = grown(self._jumps, ranks, tags)
        self._blocks = grown(self._blocks, ranks, tags)
        self._totals = grown(self._totals, ranks, tags)
        self._strength = grown(self._strength, ranks, tags)

    def clear(self, where: BoolArray, ids: npt.NDArray[np.int64]) -> None:
        """Begin anew for the ranks and tags where `where`, shape (W, T), is true."""
        self._grow(len(where), ids)
        for held in (self._sums, self._ages, self._jumps, self._blocks, self._totals, self._strength):
            part = held[:, :, ids]
            part[:, where] = 0.0
            held[:, :, ids] = part


def moving_threshold(length: int, false_alarms: float) -> float:
    """Return the height, in standard deviations, that a moving sum passes upwards so often a step.

    The rate is h phi(h) nu(h sqrt(2 / n)) / n for n normal scores, with nu(x) about exp(-0.583 x) for
    discrete steps (Siegmund, 1985).
    """
    low, high = 1.0, 1e4
    while high - low > 1e-6:
        height = 0.5 * (low + high)
        density = math.exp(-0.5 * height * height) / math.sqrt(2 * math.pi)
        rate = height * density * math.exp(-0.583 * height * math.sqrt(2 / length)) / length
        low, high = (height, high) if rate > false_alarms else (low, height)
    return high
