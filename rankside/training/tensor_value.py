"""Turns what lives on a device into numbers, as late as possible."""

from __future__ import annotations

from functools import partial
from math import prod
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


def snapshots() -> Callable[[Any], Any]:
    """Return what copies a parameter as it is now, which the next step will not overwrite; it waits for no step.

    A compiled step on a CPU is over when its call returns: there the host's own memory is copied, at less cost.
    """
    compiled = mindspore.get_context("mode") == mindspore.GRAPH_MODE
    return _host_copy if compiled and mindspore.get_context("device_target") == "CPU" else _device_copy


def _host_copy(parameter: Any) -> Any:
    return np.array(parameter.asnumpy())


def _device_copy(parameter: Any) -> Any:
    return parameter.copy()


def fetch_one(value: Any) -> float:
    """Return the value of a tensor of one element; waits for it. Raises ValueError where it has more or none."""
    shape = tuple(getattr(value, "shape", ()))
    if prod(shape) != 1:
        raise ValueError(f"a tensor of the shape {shape} was given, where one element is expected")
    return fetch_mean(value)


def later(value: Any) -> float | Callable[[], float]:
    """Return a number as it is, and a tensor of one element as a callable that fetches it."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    return partial(fetch_one, value)
