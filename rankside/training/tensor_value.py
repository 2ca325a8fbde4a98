"""Turns what lives on a device into numbers, as late as possible."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def is_tensor(value: object) -> bool:
    """Whether the value is a MindSpore tensor or parameter, of any shape."""
    return hasattr(value, "asnumpy")


def fetch_mean(value: Any) -> float:
    """Return the mean of a tensor's elements, which is its value where it has one element; waits for it."""
    try:
        # A tensor of one element: several times cheaper than by way of an array.
        return float(value.item())
    except (AttributeError, ValueError, TypeError, RuntimeError):
        array = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)
        return float(array.astype(np.float64).mean())


def snapshot(parameter: Any) -> Any:
    """Return a parameter as it is now, which the next step will not overwrite; waits for no device.

    A CPU's parameters are the host's own memory, and copying them there is the cheaper.
    """
    if mindspore.get_context("device_target") == "CPU":
        return np.array(parameter.asnumpy())
    return parameter.copy()


def later(value: Any) -> float | Callable[[], float]:
    """Return a number as it is, and a tensor as a callable that fetches it."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    return partial(fetch_mean, value)
