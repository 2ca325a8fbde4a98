"""A sequential test for a shift of the mean: small lasting shifts are found, one noisy step is not.

Two kinds of statistics run side by side on scores of mean 0 and variance 1, on both sides of zero. The
likelihood ratio of a jump finds what is large at once. Moving sums find what is small. Thresholds follow from the
rate of false alarms that is allowed. A cumulative sum (Page, 1954) dates what the moving sums find.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.detect.moving import MovingSums
from aggregator.detect.state import grown

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The jump that the likelihood ratio is made for, in standard deviations of the distance from the peers: three of the
# rank's own, less the noise of a few peers and what the bounds on scores take away.
_JUMP = 2.0
_JUMP_SHARE = 0.15
_ALLOWANCE = 0.15
_SUSPECT = 0.5


class Alarm(NamedTuple):
    """Where the test stands; all of shape (W, T).

    strength: float64, the largest log likelihood as a fraction of its threshold (of a sum, its square): 1 and above
    is an alarm; negative for a shift downwards. since: int64, the step at which that shift began.
    """

    strength: Float64Array
    since: Int64Array


class ShiftTest:
    """The test for every rank and tag; it keeps some 500 bytes of each."""

    def __init__(self, false_alarms: float) -> None:
        """Allow so many false alarms per score of healthy training, over all statistics and both sides."""
        self._moving = MovingSums((1 - _JUMP_SHARE) * false_alarms)
        # No more than exp(-h) of healthy steps bring a log likelihood ratio to h, whatever it is made of (Ville, 1939);
        # of these about every second at most is the first of its kind, and there are two sides.
        self._jump_limit = math.log(1 / (_JUMP_SHARE * false_alarms))
        self.forget()

    def forget(self) -> None:
        """Begin anew everywhere."""
        # Rows: upwards and downwards; then the steps at which these began.
        self._sums = np.zeros((4, 0, 0))
        self._jumps = np.zeros((4, 0, 0))
        self._strength = np.zeros((1, 0, 0))
        self._moving.forget()

    def observe(
        self, score: Float64Array, phi: Float64Array, widening: Float64Array, ids: Int64Array, *, step: int
    ) -> Alarm:
        """Take the scores of one step.

        score: shape (W, T), NaN where there is none. phi: shape (W, T), the autocorrelation that was taken
        out of them. widening: shape (W, T): factor by which the thresholds are raised while little is known.
        ids: shape (T,), places in the tag table. step: the step's number.
        """
        self._grow(len(score), ids)
        bare = np.nan_to_num(score)
        seen = ~np.isnan(score)
        self._cumulate(bare, seen, ids, step)
        strength, since = self._jump(bare, seen, phi, ids, step)
        moved = self._moving.observe(bare, phi, ids)
        moved *= np.abs(moved)
        larger = np.abs(moved) > np.abs(strength)
        if larger.any():
            dated = np.where(moved > 0, self._sums[2][:, ids], self._sums[3][:, ids])
            strength, since = np.where(larger, moved, strength), np.where(larger, dated, since)
        strength /= widening
        self._strength[0][:, ids] = strength
        return Alarm(strength, since.astype(np.int64))

    def suspects(self, ranks: int, ids: Int64Array) -> BoolArray:
        """Return where an alarm may be on its way, shape (W, T): a log likelihood has come half of the way.

        Noise seldom comes so far: not to learn from what it did there would make the rest look too quiet.
        """
        self._grow(ranks, ids)
        halfway: BoolArray = np.abs(self._strength[0][:, ids]) >= _SUSPECT
        return halfway

    def _cumulate(self, bare: Float64Array, seen: BoolArray, ids: Int64Array, step: int) -> None:
        sums = self._sums[:, :, ids]
        for side, sign in ((0, 1.0), (1, -1.0)):
            sums[side + 2] = np.where(sums[side] > 0, sums[side + 2], step)
            sums[side] = np.maximum(sums[side] + np.where(seen, sign * bare - _ALLOWANCE, 0.0), 0.0)
        self._sums[:, :, ids] = sums

    def _jump(
        self, bare: Float64Array, seen: BoolArray, phi: Float64Array, ids: Int64Array, step: int
    ) -> tuple[Float64Array, Float64Array]:
        """Return the log likelihood ratio of a jump as a fraction of its threshold, and when it began, shape (W, T).

        In whitened scores a jump by d standard deviations is d / sqrt(1 - phi^2) at first and (1 - phi) times
        that from then on: with autocorrelated noise the first step tells more than many later ones.
        """
        jumps = self._jumps[:, :, ids]
        first = _JUMP / np.sqrt(1 - phi * phi)
        later = first * (1 - phi)
        strength, since = np.zeros_like(bare), np.zeros_like(bare)
        for side, sign in ((0, 1.0), (1, -1.0)):
            going_on = jumps[side] + later * (sign * bare - 0.5 * later)
            begun = first * (sign * bare - 0.5 * first)
            new = seen & ((jumps[side] <= 0) | (begun > np.maximum(going_on, 0.0)))
            jumps[side + 2] = np.where(new, step, jumps[side + 2])
            jumps[side] = np.where(seen, np.maximum(np.maximum(going_on, begun), 0.0), jumps[side])
            larger = jumps[side] > np.abs(strength)
            strength = np.where(larger, sign * jumps[side], strength)
            since = np.where(larger, jumps[side + 2], since)
        self._jumps[:, :, ids] = jumps
        return strength / self._jump_limit, since

    def _grow(self, ranks: int, ids: Int64Array) -> None:
        tags = int(ids.max(initial=-1)) + 1
        self._sums = grown(self._sums, ranks, tags)
        self._jumps = grown(self._jumps, ranks, tags)
        self._strength = grown(self._strength, ranks, tags)
        self._moving.grow(ranks, tags)

    def clear(self, where: BoolArray, ids: Int64Array) -> None:
        """Begin anew for the ranks and tags where `where`, shape (W, T), is true."""
        self._grow(len(where), ids)
        ranks, columns = np.nonzero(where)
        places = ids[columns]
        for held in (self._sums, self._jumps, self._strength):
            held[:, ranks, places] = 0.0
        self._moving.clear(ranks, places)
