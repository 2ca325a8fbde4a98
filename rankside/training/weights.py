"""Collects how the weights are distributed, how large they are, and how far a step moves them, at an interval.

A weight lives on the device and the next step overwrites it, so it is copied there and reduced there; only the
results are fetched, on the background thread.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import ops

from rankside.summary import histogram_value
from rankside.tags import Tag, TagKind
from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankside.training.collector import Draft, Training

BINS = 64


class WeightNorms(Collector):
    """Tags `weight-norm/<parameter>` and `update-ratio/<parameter>`, every `every` steps.

    The ratio is |w - w'| / |w'|, where w' is the weight before the step and w after it; about 1e-3 is sound. In a
    dataset sink, before and after all its steps.
    """

    name = "weight norms"

    def __init__(self, every: int) -> None:
        self._every = every
        self._parameters: list[Any] = []
        self._before: list[Any] = []
        self._step = 0

    def train_begin(self, training: Training) -> None:
        """Find the trainable parameters."""
        self._parameters = list(training.weights)
        self._before = []
        self._step = training.base + training.counted
        training.recorder.describe(
            *(Tag(f"weight-norm/{p.name}", TagKind.REPLICATED, "", "L2 norm") for p in self._parameters),
            *(
                Tag(
                    f"update-ratio/{p.name}",
                    TagKind.REPLICATED,
                    "",
                    "norm of this step's change by norm before it",
                )
                for p in self._parameters
            ),
        )

    def step_entered(self, step: int) -> None:
        """Copy the weights as they are before the step, where they are due."""
        due = step // self._every > self._step // self._every
        self._step = step
        self._before = [parameter.copy() for parameter in self._parameters] if due else []

    def step_end(self, draft: Draft) -> None:
        """Reduce the weights and their changes."""
        if not self._before:
            return
        halves = [
            (_half_square(parameter), _half_square(parameter - before), _half_square(before))
            for parameter, before in zip(self._parameters, self._before, strict=True)
        ]
        self._before = []
        draft.deferred.append(partial(_norms, [parameter.name for parameter in self._parameters], halves))


class WeightHistograms(Collector):
    """Histograms of the parameters whose names match a pattern, such as `*.weight`, every `every` steps."""

    name = "weight histograms"

    def __init__(self, pattern: str, *, every: int) -> None:
        self._pattern = pattern
        self._every = every
        self._parameters: list[Any] = []
        self._training: Training | None = None

    def train_begin(self, training: Training) -> None:
        """Find the parameters whose names match."""
        self._training = training
        self._parameters = [
            parameter for parameter in training.weights if fnmatchcase(parameter.name, self._pattern)
        ]

    def step_end(self, draft: Draft) -> None:
        """Copy the weights, where they are due."""
        if self._training is None or draft.step // self._every == (draft.step - draft.steps) // self._every:
            return
        copies = [(parameter.name, _float32_copy(parameter)) for parameter in self._parameters]
        self._training.recorder.record(draft.step, partial(_histograms, copies))


def _float32_copy(parameter: Any) -> Any:
    # `astype` to the type that a tensor has already gives the tensor itself.
    return parameter.copy() if str(parameter.dtype) == "Float32" else parameter.astype("float32")


def _half_square(tensor: Any) -> Any:
    return ops.L2Loss()(tensor.astype("float32"))


def _norms(names: Sequence[str], halves: Sequence[tuple[Any, Any, Any]]) -> Mapping[str, float]:
    values = {}
    for name, tensors in zip(names, halves, strict=True):
        after, change, before = (sqrt(2.0 * float(tensor.item())) for tensor in tensors)
        values[f"weight-norm/{name}"] = after
        if before:  # a weight that begins at zero has no ratio
            values[f"update-ratio/{name}"] = change / before
    return values


def _histograms(copies: Sequence[tuple[str, Any]]) -> Iterable[bytes]:
    for name, copy in copies:
        values = np.asarray(copy.asnumpy(), np.float64).reshape(-1)
        values = values[np.isfinite(values)]
        if values.size:
            counts, edges = np.histogram(values, bins=BINS)
            yield histogram_value(f"weight/{name}", edges, counts)
