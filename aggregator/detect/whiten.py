"""Turns a rank's distance from its peers into scores: independent, mean 0, variance 1, while it is healthy.

Whatever the noise is, its level, size, tails and autocorrelation are estimated from the rank's own past, so
that one threshold serves all. Scores are bounded; a rank's first steps give none.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.detect.reference import MAD_TO_SIGMA, leave_one_out, median, median_of_others
from aggregator.detect.state import grown

if TYPE_CHECKING:
    from aggregator.detect.peers import Grouping
    from aggregator.detect.settings import DetectionSettings

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_REFRESH_STEPS = 8
_SCALE_STEPS = 2048
# Noise keeps its autocorrelation longer than its size, and long sums of scores need it to a few thousandths.
_PHI_STEPS = 8192
_LARGEST_PHI = 0.95
_TURMOIL_GAIN = 1 / 8
_SMALLEST_CROWD = 3
# The median of the sizes of n normal scores has a mean that is larger than that of very many by this / n (by
# simulation, for n from 3 to 64).
_FEW = 0.3
# Normal noise has 0.00006 of its steps beyond four standard deviations, Student's t(3) more than 0.01.
_HEAVY_SHARE = 0.003
_HEAVY_BOUND = 0.6
_LARGEST_TURMOIL = 8.0
_NEW_REGIME = 4.0
_LEAST_SCALE = 1 / 3
_ROUNDING = 1e-3  # parts of the floor, below which a difference is none
_CHANGE = 0.25  # part of a deviation, below which it has not changed, but been learnt as a part of the level
# Noise that grows, as it does when training begins, is learnt; a short turmoil is learnt no larger than this.
_LEARNT_TURMOIL = 2.0


class _Row(IntEnum):
    """What is remembered of each rank and tag.

    COUNT: steps learnt from. LEVEL: the rank's own offset from its peers. POWER: mean of the squared deviation.
    ENERGY, LAGGED: over longer, of a deviation and the one before, the mean of their squares and their product
    (Burg, 1967). PREVIOUS: the last deviation. SCALE: variance of the
    whitened deviation. CENTRE, VARIANCE: mean and variance of the bounded score. PHI: lag-one
    autocorrelation. TURMOIL: recent size of the scores of the whole group, 1 when as usual. WILD: share of
    scores beyond the bound. HEAVY: 1 where most ranks of the group have more of these than normal noise has. NOISY:
    steps from which the noise was learnt, 1 where there has been none. CHANGES: how often the deviation has changed
    after long without noise.
    """

    COUNT = 0
    LEVEL = 1
    POWER = 2
    LAGGED = 3
    PREVIOUS = 4
    SCALE = 5
    CENTRE = 6
    VARIANCE = 7
    PHI = 8
    TURMOIL = 9
    WILD = 10
    HEAVY = 11
    ENERGY = 12
    NOISY = 13
    CHANGES = 14


_NOISE_ROWS = [_Row.POWER, _Row.LAGGED, _Row.SCALE, _Row.CENTRE, _Row.VARIANCE, _Row.WILD, _Row.ENERGY]


class Scores(NamedTuple):
    """The scores of one step; all of shape (W, T), float64, NaN where a rank has none.

    score: whitened and standardised, about (0, 1). deviation: the distance from the peers' centre less the
    rank's own offset, in the tag's unit. sigma: the standard deviation of that when healthy. reference: what
    the value would be expected to be. learnt: steps from which the noise was learnt, or for which there was none.
    phi: lag-one autocorrelation that was taken out. renewed: bool, where what was learnt has just been given up.
    """

    score: Float64Array
    deviation: Float64Array
    sigma: Float64Array
    reference: Float64Array
    learnt: Float64Array
    phi: Float64Array
    renewed: BoolArray


class Whitener:
    """Compares each rank with its peers and with its own past.

    Per step, rank and tag: the rank's offset is subtracted; a robust centre of the peers' results, the rank
    itself left out, takes away what all ranks have in common; the rest is whitened as a first-order
    autoregression x[t] - phi x[t-1], its coefficient estimated from the rank's own lagged products and pooled
    by the median over the peer group; scaled, bounded, and made self-starting: what is known before step t
    predicts the score at t, and the error is divided by the standard deviation of prediction, sqrt(1 + 1/n).
    Such recursive residuals are independent even while the baseline is still being learnt (Brown, Durbin and
    Evans, 1975; Hawkins, 1987), so that a short past costs detection power, not false alarms.
    """

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._state = np.zeros((len(_Row), 0, 0))
        self._steps = 0

    def observe(
        self,
        values: Float64Array,
        ids: npt.NDArray[np.int64],
        grouping: Grouping,
        *,
        frozen: BoolArray,
        excluded: BoolArray,
        suspect: BoolArray,
    ) -> Scores:
        """Take the values of one step and learn from them.

        values: shape (W, T), NaN where not reported. ids: shape (T,), the tags' places in the run's tag
        table. frozen: shape (W, T): suspects, which are scored but not learnt from. suspect: the same shape:
        ranks whose noise is not learnt from. excluded: shape (W, T): ranks that are not counted among the
        peers of the others.
        """
        self._grow(len(values), int(ids.max(initial=-1)) + 1)
        state = self._state[:, :, ids]
        if self._steps % _REFRESH_STEPS == 0:
            _refresh(state, grouping)
        self._steps += 1
        scores = self._score(state, values, grouping, frozen=frozen, excluded=excluded, suspect=suspect)
        self._state[:, :, ids] = state
        return scores

    def forget(self) -> None:
        """Start anew, as after a restart of the training."""
        self._state = np.zeros((len(_Row), 0, 0))

    def _grow(self, ranks: int, tags: int) -> None:
        self._state = grown(self._state, ranks, tags)

    def _score(
        self,
        state: Float64Array,
        values: Float64Array,
        grouping: Grouping,
        *,
        frozen: BoolArray,
        excluded: BoolArray,
        suspect: BoolArray,
    ) -> Scores:
        count = state[_Row.COUNT]
        started = count > 0
        seen = np.isfinite(values)
        offset = np.where(seen, values - state[_Row.LEVEL], np.nan)
        counted = np.where(started & ~excluded, offset, np.nan)
        grid = grouping.gather(counted)
        learnt = np.where(state[_Row.NOISY] >= self._settings.warmup_steps, np.sqrt(state[_Row.POWER]), 0.0)
        sigma = _sigma(grid, grouping.gather(learnt))
        reference = grouping.scatter(leave_one_out(grid, sigma))
        deviation = offset - reference
        floor = self._settings.outlier_floor * np.abs(np.where(seen, values, 0.0))

        first = seen & ~started & ~frozen
        expected = np.where(np.isfinite(reference), reference, 0.0)
        state[_Row.LEVEL] = np.where(first, values - expected, state[_Row.LEVEL])
        state[_Row.COUNT] += first
        state[_Row.NOISY] += first
        state[_Row.PREVIOUS] = np.where(first, 0.0, state[_Row.PREVIOUS])

        usable = started & np.isfinite(deviation)
        idle = usable & (state[_Row.NOISY] == 1) & (count > _REFRESH_STEPS)
        score, renewed = self._learn(
            state,
            np.where(usable, deviation, 0.0),
            usable=usable,
            learning=usable & ~frozen,
            suspect=suspect,
            trusted=~np.isnan(counted),
            idle=idle,
            floor=floor,
            grouping=grouping,
        )
        sigma = np.maximum(np.sqrt(state[_Row.POWER]), floor)
        return Scores(
            np.where(usable, score, np.nan),
            np.where(usable, deviation, np.nan),
            sigma,
            reference + state[_Row.LEVEL],
            np.where(idle, count, state[_Row.NOISY]),
            state[_Row.PHI],
            renewed,
        )

    def _learn(
        self,
        state: Float64Array,
        deviation: Float64Array,
        *,
        usable: BoolArray,
        learning: BoolArray,
        suspect: BoolArray,
        trusted: BoolArray,
        idle: BoolArray,
        floor: Float64Array,
        grouping: Grouping,
    ) -> tuple[Float64Array, BoolArray]:
        clip = self._settings.outlier_clip
        count, noisy = state[_Row.COUNT], state[_Row.NOISY]
        early = noisy < _REFRESH_STEPS
        spread = np.maximum(np.sqrt(state[_Row.POWER]), floor)
        bounded = np.where(early, deviation, np.clip(deviation, -2 * clip * spread, 2 * clip * spread))
        previous, phi = state[_Row.PREVIOUS], state[_Row.PHI]
        changed = learning & (np.abs(deviation - previous) > _CHANGE * np.abs(previous) + _ROUNDING * floor)
        jump = np.maximum(np.abs(deviation), np.abs(previous))
        innovation = bounded - phi * previous
        # Of rare events, bounded, the scale would believe less and less: it is held to what is known of their size.
        least = np.maximum(floor, _LEAST_SCALE * np.sqrt(state[_Row.POWER] * (1 - phi * phi)))
        scale = np.maximum(np.sqrt(state[_Row.SCALE]), least)
        with np.errstate(divide="ignore", invalid="ignore"):
            bare = np.where(scale > 0, innovation / scale, 0.0)
        turmoil = _turmoil(state, np.where(learning, bare, np.nan), grouping)
        bare = bare / turmoil
        wild = np.abs(bare) > clip
        # Where the tails are heavy a few wild steps in a row are nothing rare: each counts less.
        bound = np.where(state[_Row.HEAVY] > 0, _HEAVY_BOUND * clip, clip)
        bare = np.clip(bare, -bound, bound)
        error = bare - state[_Row.CENTRE]
        known = np.maximum(np.where(idle, count, noisy), 1.0)
        variance = np.where(noisy > 2, np.maximum(state[_Row.VARIANCE], 0.5), 1.0)
        score: Float64Array = error / np.sqrt(variance * (1 + 1 / known))

        gain = np.where(learning, 1 / np.minimum(count + 1, self._settings.baseline_steps), 0.0)
        noise = learning & ~suspect & ~idle
        quick = np.where(noise, 1 / np.minimum(noisy + 1, _SCALE_STEPS), 0.0)
        follows = noise & (previous != 0)
        slow = np.where(follows, 1 / np.minimum(noisy + 1, _PHI_STEPS), 0.0)
        move = gain * bounded
        state[_Row.LEVEL] += move
        with np.errstate(divide="ignore", invalid="ignore"):
            # The levels move under the scores: the centre moves with what a rank's moves against its peers', or a shift
            # would be absorbed twice, and a centre that is not the mean, as of skewed noise, never be learnt.
            relative = _relative(move, gain * 2 * clip * spread, trusted, grouping)
            moved = np.where(scale > 0, relative * (1 - phi) / scale, 0.0)
        state[_Row.CENTRE] += gain * error - np.where(early, 0.0, moved)
        state[_Row.POWER] += quick * (bounded * bounded - state[_Row.POWER])
        # Of the two the first is larger, and the second smaller, than from the true level by equal parts.
        both = 0.5 * (bounded * bounded + previous * previous)
        state[_Row.ENERGY] += slow * (both - state[_Row.ENERGY])
        state[_Row.LAGGED] += slow * (bounded * previous - state[_Row.LAGGED])
        size = np.where(early, innovation, bare * np.minimum(turmoil, _LEARNT_TURMOIL) * scale)
        state[_Row.SCALE] += quick * (size * size - state[_Row.SCALE])
        state[_Row.WILD] += quick * (wild - state[_Row.WILD])
        state[_Row.VARIANCE] += quick * (error * error * known / (known + 1) - state[_Row.VARIANCE])
        state[_Row.PREVIOUS] = np.where(usable, bounded - move, 0.0)
        state[_Row.COUNT] += learning
        state[_Row.NOISY] += (changed | (learning & (noisy > 1))) & ~idle
        # Noise that stays several times as large in the whole group is another regime: nothing learnt holds in it.
        renewed = learning & (state[_Row.TURMOIL] > _NEW_REGIME)
        state[:, renewed] = 0.0
        if (idle & changed).any():
            renewed |= _awaken(state, idle & changed, jump, learning=learning, grouping=grouping)
        return score, renewed


def _awaken(
    state: Float64Array, changed: BoolArray, jump: Float64Array, *, learning: BoolArray, grouping: Grouping
) -> BoolArray:
    """Begin to learn the noise of what has been constant and changes for the second time; return where.

    One change of a single rank may be a fault. Where most of a group change at once, all of it begins anew; of two that
    part, both change. jump: how large the change is.
    """
    state[_Row.CHANGES] += changed
    awake = changed & (state[_Row.CHANGES] > 1)
    for row in _NOISE_ROWS:
        state[row, awake] = 0.0
    state[_Row.POWER, awake] = state[_Row.SCALE, awake] = jump[awake] ** 2
    state[_Row.NOISY, awake] = 2.0
    together = _most(awake, learning, grouping) | _most(changed, learning, grouping, of=_SMALLEST_CROWD)
    together &= learning
    state[:, together] = 0.0
    renewed: BoolArray = awake | together
    return renewed


def _most(where: BoolArray, among: BoolArray, grouping: Grouping, *, of: int = 1) -> BoolArray:
    """Return shape (W, T): where it holds for more than half of a rank's group, which are that many at least."""
    grid = grouping.gather(np.where(among, where.astype(np.float64), np.nan))
    counted = np.sum(~np.isnan(grid), axis=1, keepdims=True)
    most = (np.nansum(grid, axis=1, keepdims=True) > 0.5 * counted) & (counted >= of)
    return grouping.scatter(np.broadcast_to(most, grid.shape).astype(np.float64)) > 0


def _relative(
    moves: Float64Array, largest: Float64Array, trusted: BoolArray, grouping: Grouping
) -> Float64Array:
    """Return by how much each rank's level moves against the mean of the others of its group, shape (W, T).

    A rank that is far off hardly moves the centre of the others: no move counts more than what is typical of the
    largest ones. largest: shape (W, T), what those of each rank may be. trusted: the ranks that count among the peers
    of others.
    """
    bound = np.nan_to_num(median(grouping.gather(np.where(trusted, largest, np.nan))))[:, None]
    grid = np.clip(grouping.gather(np.where(trusted, moves, np.nan)), -bound, bound)
    counted = ~np.isnan(grid)
    known = np.where(counted, grid, 0.0)
    others = np.maximum(counted.sum(axis=1, keepdims=True) - counted, 1)
    return moves - grouping.scatter((known.sum(axis=1, keepdims=True) - known) / others)


def _sigma(grid: Float64Array, learnt: Float64Array) -> Float64Array:
    """Return each rank's standard deviation, shape (G, S, T), no less than half of what is typical of its group.

    grid: the values of this step. learnt: what is known of the ranks, 0 or NaN where nothing is; where
    nothing is known of a whole group, the spread of this step stands in.
    """
    typical = median(np.where(learnt > 0, learnt, np.nan))[:, None]
    if np.isnan(typical).any():
        now = MAD_TO_SIGMA * median(np.abs(grid - median(grid)[:, None]))[:, None]
        typical = np.where(np.isnan(typical), np.nan_to_num(now), typical)
    return np.where(learnt > 0, np.maximum(learnt, 0.5 * typical), typical)


def _turmoil(state: Float64Array, bare: Float64Array, grouping: Grouping) -> Float64Array:
    """Return by how much the noise of the others of its group is larger than usual now, shape (W, T), at least 1.

    When everybody's values jump or get noisier at once, that is nobody's fault; what a rank does itself is not to be
    taken for it. bare: the scores of the ranks that are trusted, else NaN. The median of the sizes of the others' sees
    it in groups of three or more, at once where it is more than two and a half times the usual, and where it lasts from
    a quarter on.
    """
    grid = grouping.gather(np.abs(bare))
    ranks = np.sum(~np.isnan(grid), axis=1, keepdims=True)
    typical = MAD_TO_SIGMA * median_of_others(grid) / (1 + _FEW / np.maximum(ranks - 1, 1))
    now = grouping.scatter(np.where(ranks >= _SMALLEST_CROWD, typical, np.nan))
    known = np.isfinite(now)
    bounded = np.minimum(now, _LARGEST_TURMOIL)
    state[_Row.TURMOIL] += np.where(known, _TURMOIL_GAIN * (bounded - state[_Row.TURMOIL]), 0.0)
    larger = np.maximum(np.where(known, now, 0.0) / 2.5, state[_Row.TURMOIL] / 1.25)
    return np.where(state[_Row.NOISY] > _REFRESH_STEPS, np.maximum(larger, 1.0), 1.0)


def _refresh(state: Float64Array, grouping: Grouping) -> None:
    count, energy = state[_Row.NOISY], state[_Row.ENERGY]
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = state[_Row.LAGGED] / energy
        # Estimates from short series are too small by about 2 phi / n where the level is no part of the estimate, being
        # known from what was before (Bartlett, 1946; Kendall, 1954, where it is).
        unbiased = np.where((count > 2 * _REFRESH_STEPS) & (energy > 0), raw + 2 * raw / count, np.nan)
    pooled = median(grouping.gather(unbiased))
    wide = np.broadcast_to(pooled[:, None], (len(pooled), grouping.members.shape[1], pooled.shape[1]))
    phi = grouping.scatter(wide)
    state[_Row.PHI] = np.clip(np.where(np.isfinite(phi), phi, 0.0), 0.0, _LARGEST_PHI)
    wild = median(grouping.gather(np.where(count > 2 * _REFRESH_STEPS, state[_Row.WILD], np.nan)))[:, None]
    state[_Row.HEAVY] = grouping.scatter(np.broadcast_to(wild > _HEAVY_SHARE, wide.shape))
