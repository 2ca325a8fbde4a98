"""The last steps, kept so that a finding can say what moved before it.

Holds the mean column of the latest steps only; everything older is gone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankside.window import Column

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.step import StepMatrix

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]


class _Kept(NamedTuple):
    step: int
    tag_ids: Int64Array
    means: Float64Array


class History:
    """A ring of the latest steps."""

    def __init__(self, *, steps: int) -> None:
        """Keep so many steps."""
        self._kept: deque[_Kept] = deque(maxlen=steps)

    def add(self, matrix: StepMatrix) -> None:
        """Keep one closed step."""
        if matrix.session_start:
            self._kept.clear()
        self._kept.append(_Kept(matrix.step, matrix.tag_ids, matrix.columns[Column.MEAN].copy()))

    def series(self, tag_id: int, world_size: int) -> tuple[Int64Array, Float64Array]:
        """Return the steps, shape (K,), and values, shape (K, W), NaN where not reported, of one tag."""
        steps: list[int] = []
        rows: list[Float64Array] = []
        for kept in self._kept:
            place = np.flatnonzero(kept.tag_ids == tag_id)
            if len(place):
                row = np.full(world_size, np.nan)
                values = kept.means[:, place[0]]
                row[: len(values)] = values[:world_size]
                steps.append(kept.step)
                rows.append(row)
        return np.array(steps, dtype=np.int64), np.array(rows).reshape(len(rows), world_size)
