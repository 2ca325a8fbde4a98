"""Takes values as they are now, since the background thread reads them later and a training loop reuses its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping


def snapshot(value: Any) -> Any:
    """Return an array's or a tensor's copy, made without waiting for its device; other values as they are."""
    if not (isinstance(value, np.ndarray) or hasattr(value, "asnumpy")):
        return value
    return value.copy()


def snapshots_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a map of the values as they are now. Raises TypeError or ValueError where this is no map."""
    # Most are Python's own numbers, and a call for each would cost more than all the rest of recording it.
    return {name: value if type(value) is float else snapshot(value) for name, value in dict(values).items()}
