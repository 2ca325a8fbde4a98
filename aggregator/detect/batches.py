"""Ranks' own times in batches of steps, against the middle of their peers, and how noisy batches are.

A step's excess is bounded, so that one long pause does not make a slow rank.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect.reference import median
from aggregator.detect.state import grown

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.peers import Grouping

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]

BATCH_STEPS = 8
BATCHES = 25
_NOISE_BATCHES = 256
_LAGS = (1, 4)
# The excess of one step counts up to the peers' own time, or to this part of a whole step where that is more:
# of peers that need next to nothing, many times as much may still be little.
_EXCESS_BOUND = 1.0
_EXCESS_BOUND_OF_ITERATION = 0.1
_LARGEST_DEPENDENCE = 0.9
_GROWTH = 1.5


class Row(IntEnum):
    """What is kept of a batch: means over its steps.

    EXCESS: of the own time over the peers', as a fraction of theirs. LEAD: the same, but bounded by the peers' time:
    pauses that hit ranks at random are not to look like turns. PEERS, OWN: milliseconds. SEEN: 1 where the rank has
    reported, else 0.
    """

    EXCESS = 0
    LEAD = 1
    PEERS = 2
    OWN = 3
    SEEN = 4


class Batches:
    """The last batches of every rank and tag, and the noise of many more of them."""

    def __init__(self) -> None:
        self._running = np.zeros((len(Row), 0, 0))
        self._kept = np.zeros((BATCHES * len(Row), 0, 0))
        # How many batches; means of the squared difference of a batch from the last one, and from the fourth last.
        self._noise = np.zeros((3, 0, 0))
        self._closed = 0
        self.steps = 0

    def add(self, values: Float64Array, ids: Int64Array, grouping: Grouping, *, iteration_ms: float) -> None:
        """Take one step: own times in milliseconds, shape (W, T), NaN where not reported, of these tags."""
        tags = int(ids.max(initial=-1)) + 1
        self._running = grown(self._running, len(values), tags)
        self._kept = grown(self._kept, len(values), tags)
        self._noise = grown(self._noise, len(values), tags)
        peers = typical(values, grouping)
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = np.maximum(_EXCESS_BOUND, _EXCESS_BOUND_OF_ITERATION * iteration_ms / peers)
            excess = np.clip(values / peers - 1, -bound, bound)
        known = np.isfinite(excess)
        step = np.stack([excess, np.minimum(excess, _EXCESS_BOUND), peers, values, known])
        self._running[:, :, ids] += np.where(known, step, 0.0)
        self.steps += 1
        if self.steps % BATCH_STEPS == 0:
            self._close()

    def _close(self) -> None:
        steps = self._running[Row.SEEN].copy()
        batch = self._running / np.maximum(steps, 1)
        batch[Row.SEEN] = steps > 0
        self._noise[0] = np.minimum(self._noise[0] + batch[Row.SEEN], _NOISE_BATCHES)
        kept = self._view()
        for row, lag in enumerate(_LAGS, 1):
            before = kept[(self._closed - lag) % BATCHES]
            both = (batch[Row.SEEN] > 0) & (before[Row.SEEN] > 0)
            change = (batch[Row.EXCESS] - before[Row.EXCESS]) ** 2
            gain = np.where(both, 1 / np.maximum(self._noise[0] - lag, 1), 0.0)
            self._noise[row] += gain * (change - self._noise[row])
        kept[self._closed % BATCHES] = batch
        self._closed += 1
        self._running[:] = 0.0

    def _view(self) -> Float64Array:
        return self._kept.reshape(BATCHES, len(Row), *self._kept.shape[1:])

    def kept(self, ids: Int64Array) -> Float64Array:
        """Return the last batches, newest first, shape (rows, B, W, T)."""
        newest = self._closed - 1
        places = (newest - np.arange(min(self._closed, BATCHES))) % BATCHES
        return np.moveaxis(self._view()[places][:, :, :, ids], 1, 0)

    def long_run_variance(self, ids: Int64Array, grouping: Grouping) -> Float64Array:
        """Return the variance of a mean over n batches, times n, shape (W, T).

        v (1 + r) / (1 - r) for batches that are a first-order autoregression with variance v and coefficient r. Squared
        differences have the means 2 v (1 - r) at lag one and 2 v where the dependence has gone. Differences (von
        Neumann, 1941) do not see the level, so that a rank that becomes slow does not look noisy. r is the median over
        the group; no rank is taken to be less noisy than is typical of its group, nor the group than it was of late.
        """
        _, one, far = self._noise[:, :, ids]
        far = np.maximum(one, far)
        with np.errstate(divide="ignore", invalid="ignore"):
            r = np.clip(np.nan_to_num(typical(1 - one / far, grouping)), 0.0, _LARGEST_DEPENDENCE)
            growth = np.nan_to_num(self._recent(ids, grouping) / (_GROWTH * typical(one, grouping)))
        variance = 0.5 * np.fmax(far, typical(far, grouping)) * np.maximum(growth, 1.0)
        result: Float64Array = variance * (1 + r) / (1 - r)
        return result

    def learnt(self, ids: Int64Array) -> Float64Array:
        """Return how many batches the noise is known from, shape (W, T)."""
        counted: Float64Array = self._noise[0][:, ids]
        return counted

    def _recent(self, ids: Int64Array, grouping: Grouping) -> Float64Array:
        """Return what is typical of the group's squared differences within the batches that are kept."""
        kept = self.kept(ids)
        both = kept[Row.SEEN, 1:] * kept[Row.SEEN, :-1]
        changes = (np.diff(kept[Row.EXCESS], axis=0) ** 2 * both).sum(axis=0) / np.maximum(
            both.sum(axis=0), 1
        )
        return typical(changes, grouping)


def typical(values: Float64Array, grouping: Grouping) -> Float64Array:
    """Return the median over each rank's group, shape (W, T)."""
    grid = grouping.gather(values)
    return grouping.scatter(np.broadcast_to(median(grid)[:, None], grid.shape))
