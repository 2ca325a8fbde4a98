"""What detectors remember of ranks and tags: arrays that grow as ranks and tags come."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

_Number = TypeVar("_Number", bound=np.generic)


def grown(state: npt.NDArray[_Number], ranks: int, tags: int) -> npt.NDArray[_Number]:
    """Return the state, shape (K, W, T), with room for so many ranks and tags; what is new is zero."""
    _, old_ranks, old_tags = state.shape
    if ranks <= old_ranks and tags <= old_tags:
        return state
    larger = np.zeros((len(state), max(ranks, old_ranks), max(tags, old_tags)), dtype=state.dtype)
    larger[:, :old_ranks, :old_tags] = state
    return larger
