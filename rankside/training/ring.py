"""Reads rows that a running graph writes into a ring on the device; the host's half of the gradient probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Float32Array = npt.NDArray[np.float32]


class Ring:
    """A ring of marked rows, shape (rows, columns), float32.

    parameter: what the graph writes. closed: whether the mark stands at a row's end as well as at its start, so
    that a row which is being overwritten is not taken for a whole one.

    A mark is the number of the row as float32. That is exact up to 2**24 only, but two rows that share a place
    in the ring differ by at least its length, which float32 still tells apart beyond any int32.

    A copy of the ring serves all rows that it holds, so one transfer from the device may serve many steps.
    """

    def __init__(self, parameter: Any, *, closed: bool) -> None:
        self._parameter = parameter
        self._closed = closed
        self._rows: Float32Array = np.full((1, 1), np.nan, np.float32)

    def row(self, count: int) -> Float32Array:
        """Return what was noted when the graph ran for the `count`-th time, without the marks; waits for it.

        Raises LookupError where the row is overwritten already, or was not written.
        """
        row = self._rows[count % len(self._rows)]
        if not self._is(row, count):
            self._rows = np.array(self._parameter.asnumpy())
            row = self._rows[count % len(self._rows)]
            if not self._is(row, count):
                raise LookupError(
                    "what the gradient probe noted of a step was overwritten before it was read, or never noted"
                )
        found: Float32Array = row[1:-1] if self._closed else row[1:]
        return found

    def _is(self, row: Float32Array, count: int) -> bool:
        mark = np.float32(count)
        return bool(row[0] == mark and (not self._closed or row[-1] == mark))
