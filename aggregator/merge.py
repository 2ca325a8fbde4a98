"""Statistics of a step across ranks: pure, and without a loop over values.

The figures are over the finite values of the ranks that reported, each window weighted by the number of values
it stands for; moments combine by the parallel update of Chan, Golub and LeVeque (1983). So the merge of any
partition of the values is the merge of all of them, up to rounding. A value that is not finite is counted and
hides nothing.
"""

from __future__ import annotations

import numpy as np

from aggregator.step import MergedStep, StepMatrix
from rankside.window import Column


def merge(matrix: StepMatrix) -> MergedStep:
    """Return the statistics of each tag of the matrix across its ranks."""
    columns = matrix.columns
    counts = columns[Column.COUNT]
    finite = counts > 0
    total = counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(finite, columns[Column.MEAN], 0.0)
        mean = (counts * means).sum(axis=0) / total
        deviations = np.where(finite, means - mean, 0.0)
        squares = np.where(finite, columns[Column.M2], 0.0) + counts * deviations**2
        std = np.sqrt(squares.sum(axis=0) / total)
    minima = np.where(finite, columns[Column.MIN], np.inf)
    maxima = np.where(finite, columns[Column.MAX], -np.inf)
    somebody = total > 0
    rank_of_min = minima.argmin(axis=0)
    rank_of_max = maxima.argmax(axis=0)
    every_tag = np.arange(len(total))
    return MergedStep(
        mean=mean,
        std=std,
        minimum=np.where(somebody, minima[rank_of_min, every_tag], np.nan),
        maximum=np.where(somebody, maxima[rank_of_max, every_tag], np.nan),
        ranks_seen=np.count_nonzero(matrix.reported, axis=0),
        nonfinite=columns[Column.NONFINITE].sum(axis=0).astype(np.int64),
        rank_of_min=np.where(somebody, rank_of_min, -1),
        rank_of_max=np.where(somebody, rank_of_max, -1),
    )
