"""What detectors remember of ranks and tags: arrays that grow as ranks and tags come."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


def grown(state: Float64Array, ranks: int, tags: int) -> Float64Array:
    """Return the state, shape (K, W, T), with room for so many ranks and tags; what is new is zero."""
    _, old_ranks, old_tags = state.shape
    if ranks <= old_ranks and tags <= old_tags:
        return state
    larger: Float64Array = np.zeros((len(state), max(ranks, old_ranks), max(tags, old_tags)))
    larger[:, :old_ranks, :old_tags] = state
    return larger
