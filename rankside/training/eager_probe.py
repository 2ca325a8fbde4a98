"""Collects gradient norms where training runs operation by operation, in PyNative mode.

There the training thread itself launches a kernel for each gradient whose norm is wanted, which would slow a small
network by a tenth and more. So norms are taken at an interval. Learning rate and loss scale are not noted on the
way: to ask the optimizer and the train cell is cheaper.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore import nn, ops

from rankside.training.collector import Collector
from rankside.training.gradient_norms import EagerTurns, Norms, obstacle, reduces, runs_eagerly
from rankside.training.tensor_value import fetch_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankside.training.collector import Draft, Training


class EagerProbe(Collector):
    """The tags of `Norms`, where the train cell runs eagerly; elsewhere it stays away, and `GradientProbe` serves.

    every: steps between two records, beside that of the first step and those for which the aggregator asks for
    dense reports. layers_every: steps between two records of every parameter's norm; 0 for none.
    """

    name = "gradient norms"

    def __init__(self, *, every: int, layers_every: int = 0) -> None:
        self._every = every
        self._layers_every = layers_every
        self._network: Any = None
        self._reducer: _WatchedReducer | None = None
        self._norms: Norms | None = None
        self._turns: EagerTurns | None = None

    def train_begin(self, training: Training) -> None:
        """Take the reducer's place."""
        self._reducer = None
        if not runs_eagerly(training.network) or obstacle(training.network):
            return
        self._network = training.network
        self._norms = Norms(training, self._network.grad_reducer, layers=self._layers_every > 0)
        self._reducer = self._network.grad_reducer = _WatchedReducer(self._network.grad_reducer)
        self._turns = EagerTurns(training, every=self._every, layers_every=self._layers_every)

    def train_end(self) -> None:
        """Give the train cell its own reducer back."""
        if self._reducer is not None and self._network.grad_reducer is self._reducer:
            self._network.grad_reducer = self._reducer.reducer

    @property
    def serves(self) -> bool:
        """Whether it is in place."""
        return self._reducer is not None

    def step_begin(self, step: int) -> None:
        """Have the reducer watched in a step that is due."""
        if self._reducer is not None and self._turns is not None:
            self._reducer.watched = self._turns.due(step)

    def step_end(self, draft: Draft) -> None:
        """Add what the reducer was given and what it returned."""
        reducer, norms, turns = self._reducer, self._norms, self._turns
        if reducer is None or norms is None or turns is None or reducer.noted is None:
            return
        before, after = reducer.noted
        reducer.noted = None
        draft.deferred.append(partial(_of_all, norms, ops.addn(before), ops.addn(after)))
        if turns.layers_due(draft.step):
            draft.deferred.append(partial(_of_each, norms, before))


class _WatchedReducer(nn.Cell):  # type: ignore[misc]
    """Calls a train cell's gradient reducer; in a watched step, notes the gradients' half squares around it.

    noted: those before and those behind it, one tensor of the shape () a gradient, since `noted` was last cleared.
    """

    def __init__(self, reducer: Any) -> None:
        super().__init__(auto_prefix=False)
        self.reducer = reducer
        self.reduces = reduces(reducer)
        self.watched = False
        self.noted: tuple[Sequence[Any], Sequence[Any]] | None = None
        self._half_square = ops.L2Loss()

    def construct(self, gradients: Any) -> Any:
        """Return what the reducer returns."""
        if not self.watched:
            return self.reducer(gradients)
        before = self._half_squares(gradients)
        reduced = self.reducer(gradients)
        self.noted = before, self._half_squares(reduced) if self.reduces else before
        return reduced

    def _half_squares(self, gradients: Any) -> list[Any]:
        tensors = [getattr(gradient, "values", gradient) for gradient in gradients]
        return [self._half_square(ops.cast(tensor, mindspore.float32)) for tensor in tensors]


def _of_all(norms: Norms, before: Any, after: Any) -> Mapping[str, float]:
    return norms.of_all(fetch_mean(before), fetch_mean(after))


def _of_each(norms: Norms, before: Sequence[Any]) -> Mapping[str, float]:
    return norms.of_each([fetch_mean(half) for half in before])
