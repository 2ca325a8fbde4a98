"""What the stages of the pipeline hand to each other: a closed step and its statistics across ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rankside.window import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from rankside.tags import Tag

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]


class StepMatrix(NamedTuple):
    """All that the ranks said about one step, side by side.

    step: the step.
    tags: the run's tag table; it only grows, so an index into it stays true for the whole run.
    tag_ids: shape (T,), ascending indices into `tags`: the tags that at least one rank reported at this step.
    columns: shape (7, W, T), float64: statistics as `Column` orders them, of rank r in row r; W is the world
        size. A rank that did not report a tag has COUNT and NONFINITE zero there, and NaN elsewhere.
    wall_time: seconds since the epoch: the median of the reporting ranks' clocks, so that one wrong clock does
        not matter.
    session_start: this step begins anew what was lost in a restart: everything that was said earlier of this
        step and of later ones is void.
    """

    step: int
    tags: Sequence[Tag]
    tag_ids: Int64Array
    columns: Float64Array
    wall_time: float = 0.0
    session_start: bool = False

    @property
    def reported(self) -> npt.NDArray[np.bool_]:
        """Shape (W, T): where a rank reported a tag at all."""
        seen: npt.NDArray[np.bool_] = self.columns[Column.COUNT] + self.columns[Column.NONFINITE] > 0
        return seen


class MergedStep(NamedTuple):
    """The statistics of one step across ranks, one entry a tag of the matrix: every array has shape (T,).

    mean, std, minimum, maximum: float64, over the finite values; NaN where there is none. std is the
        population's (divided by n).
    ranks_seen: int64, ranks that reported the tag. nonfinite: int64, values that were NaN or infinite.
    rank_of_min, rank_of_max: int64, the lowest rank that holds the extreme; -1 where there is none.
    """

    mean: Float64Array
    std: Float64Array
    minimum: Float64Array
    maximum: Float64Array
    ranks_seen: Int64Array
    nonfinite: Int64Array
    rank_of_min: Int64Array
    rank_of_max: Int64Array
