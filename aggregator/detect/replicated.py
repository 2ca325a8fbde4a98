"""Which numbers must be equal on all replicas: those declared so, and those that have been so for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect.state import grown
from rankside.tags import TagKind
from rankside.window import Column

if TYPE_CHECKING:
    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]


class ReplicatedTags:
    """Learns which undeclared tags are replicated: bit-equal on all ranks at enough changes of the value."""

    def __init__(self, changes_needed: int) -> None:
        self._needed = changes_needed
        # Rows: the last common value, the number of its changes, 1 where ranks once differed.
        self._state = np.zeros((3, 1, 0))

    def learn(self, tag_ids: Int64Array, columns: Float64Array) -> None:
        """Take one step. tag_ids: shape (T,). columns: shape (7, W, T)."""
        self._state = grown(self._state, 1, int(tag_ids.max(initial=-1)) + 1)
        value = columns[Column.MEAN]
        low = np.min(np.where(np.isnan(value), np.inf, value), axis=0)
        high = np.max(np.where(np.isnan(value), -np.inf, value), axis=0)
        several = np.sum(columns[Column.COUNT] > 0, axis=0) >= 2
        last, changes, differed = self._state[:, 0, tag_ids]
        changes += several & (low == high) & (low != last)
        differed = np.where(several & (low != high) & (changes < self._needed), 1.0, differed)
        self._state[:, 0, tag_ids] = np.where(several, low, last), changes, differed

    def is_replicated(self, index: int, kind: TagKind) -> bool:
        """Return whether the tag at this place of the tag table is declared or learnt to be replicated."""
        if kind is not TagKind.UNKNOWN:
            return kind is TagKind.REPLICATED
        if index >= self._state.shape[2]:
            return False
        _, changes, differed = self._state[:, 0, index]
        return bool(changes >= self._needed and not differed)
