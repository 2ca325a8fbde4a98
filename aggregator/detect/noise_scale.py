"""The gradient noise scale, from gradient norms that are measured anyway.

It tells how large a batch still pays: well below it, a larger batch trains proportionally faster; well above
it, a larger batch is wasted. Given as a multiple of one rank's batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankside.tags import Tag, TagKind
from rankside.window import Column

if TYPE_CHECKING:
    from aggregator.step import StepMatrix

TAG = Tag(
    "gradient-noise-scale",
    TagKind.INFO,
    "batches of one rank",
    "gradient noise scale (McCandlish et al., 2018); assumes equal batches on all ranks and a grad-norm of the mean "
    "gradient, before clipping",
)
_LOCAL, _GLOBAL, _BATCH = "local-grad-norm", "grad-norm", "batch-size"
_ROUNDING = 1e-3


class GradientNoiseScale:
    """Smooths the two unbiased estimates of McCandlish et al. (2018, appendix A.1) and gives their ratio.

    With B ranks of one batch each, |g| the norm of a rank's gradient and |G| that of their mean:
    |true gradient|^2 = (B |G|^2 - mean |g|^2) / (B - 1), trace of the covariance = (mean |g|^2 - |G|^2) / (1
    - 1/B). Both are averaged exponentially before the division, because a ratio of noisy numbers is biased.
    """

    def __init__(self, *, memory_steps: int = 100) -> None:
        self._memory = memory_steps
        self._forget()

    def _forget(self) -> None:
        self._signal = self._noise = self._weight = 0.0

    def observe(self, matrix: StepMatrix) -> tuple[tuple[Tag, float], ...]:
        """Take one closed step; return the curve's tag and value, or nothing where it cannot be known.

        It cannot with fewer than two ranks, with unequal batches, or where the global norm exceeds the mean
        of the local ones, which no mean gradient does (the triangle inequality): then it is a sum.
        """
        if matrix.session_start:
            self._forget()
        names = {matrix.tags[index].name: column for column, index in enumerate(matrix.tag_ids.tolist())}
        if _LOCAL not in names or _GLOBAL not in names:
            return ()
        means = matrix.columns[Column.MEAN]
        if _BATCH in names:
            batches = means[:, names[_BATCH]]
            if np.ptp(batches[np.isfinite(batches)]) > 0:
                return ()
        local, reduced = means[:, names[_LOCAL]], means[:, names[_GLOBAL]]
        if not (np.isfinite(local).all() and np.isfinite(reduced).all()) or len(local) < 2:
            return ()
        ranks = len(local)
        big = float(np.median(reduced))
        if big > float(local.mean()) * (1 + _ROUNDING):
            return ()
        small_square, big_square = float(np.mean(local**2)), big * big
        gain = 1 / self._memory
        self._weight += gain * (1 - self._weight)
        self._signal += gain * ((ranks * big_square - small_square) / (ranks - 1) - self._signal)
        self._noise += gain * ((small_square - big_square) / (1 - 1 / ranks) - self._noise)
        if self._signal <= 0:
            return ()
        return ((TAG, self._noise / self._signal),)
