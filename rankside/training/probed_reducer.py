"""A gradient reducer that notes, inside the step, what only exists there; the device's half of the gradient probe.

Each step writes one row of a ring:

    mark | local half square | global half square | loss scale | rate 0, 1, ... | mark

float32; the mark is the number of the step, in this ring, as float32; a half square is half the sum of the
squares of all gradients. A rate is that of a parameter group, or the optimizer's count of steps where the host knows
the group's rate by it, which saves the graph the kernels of a schedule.

The ring of layers holds `mark | half square of each gradient before the reduction`.
"""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from rankside.training.gradient_norms import reduces

ROWS = 2048
LAYER_ROWS = 64

_half_square = ops.MultitypeFuncGraph("crossrank_half_square")


@_half_square.register("Tensor")  # type: ignore[untyped-decorator]
def _half_square_of_tensor(gradient: Any) -> Any:
    return ops.L2Loss()(ops.cast(gradient, mindspore.float32))


def _is_flat(gradients: Any) -> bool:
    """Whether these are some dense tensors, and nothing else; known when the graph is compiled."""
    if not isinstance(gradients, (tuple, list)) or len(gradients) == 0:
        return False
    for gradient in gradients:  # noqa: SIM110 (a graph compiles no generator)
        if not isinstance(gradient, Tensor):
            return False
    return True


class ProbedReducer(nn.Cell):  # type: ignore[misc]
    """Takes the place of a train cell's gradient reducer, and calls it.

    due: whether to note the gradients where the train cell runs operation by operation, which launches a kernel a
    gradient from the training thread. noted: whether it did, since this was last cleared. A compiled train cell has
    the notes in its graph, takes them always, and leaves both as they are. Where the reducer is called several times
    in a step, the last call's notes are the step's.

    reducer: the train cell's own. rates: one a parameter group: a parameter, a schedule cell to be asked at the
    optimizer's `global_step`, or None for that count itself. scale: the train cell's loss scale parameter, or None.
    layers: number of gradients whose norms are noted one by one, or 0.
    """

    def __init__(self, reducer: Any, *, rates: list[Any], global_step: Any, scale: Any, layers: int) -> None:
        super().__init__(auto_prefix=False)
        self.due = True
        self.noted = False
        self.reducer = reducer
        self.reduces = reduces(reducer)
        self.counts = tuple(rate is None for rate in rates)
        self.rates = tuple(global_step if rate is None else rate for rate in rates)
        self.schedules = tuple(isinstance(rate, nn.Cell) for rate in rates)
        self.global_step = global_step
        self.scale = scale
        self.layers = layers
        self.map = ops.HyperMap()
        self.add = ops.AddN()
        self.write = ops.ScatterUpdate()
        self.advance = ops.AssignAdd()
        self.one = Tensor([1], mindspore.int32)
        self.zero = Tensor(0.0, mindspore.float32)
        for name, value in {
            "count": Tensor([0], mindspore.int32),
            "notes": Tensor(np.zeros((ROWS, 5 + len(rates)), np.float32)),
            "layer_notes": Tensor(np.zeros((LAYER_ROWS, 1 + layers), np.float32)),
        }.items():
            parameter = Parameter(value, name=f"crossrank.{name}", requires_grad=False)
            # Past Cell.__setattr__, so that these are no parameters of the user's network: checkpoints must
            # not hold them.
            object.__setattr__(self, name, parameter)

    def __call__(self, gradients: Any) -> Any:
        """Return what the reducer returns; called by Python, and by no compiled graph."""
        if not self.due:
            return self.reducer(gradients)
        self.noted = True
        return super().__call__(gradients)

    def construct(self, gradients: Any) -> Any:
        """Return what the reducer returns."""
        if not _is_flat(gradients):
            return self.reducer(gradients)
        before = self.map(_half_square, gradients)
        reduced = self.reducer(gradients)
        local = self.add(before)
        total = local
        if self.reduces:
            total = self.add(self.map(_half_square, reduced))
        position = self.advance(self.count, self.one)
        mark = ops.cast(position, mindspore.float32).reshape(())
        row = [mark, local.reshape(()), total.reshape(())]
        if self.scale is not None:
            row.append(ops.cast(self.scale, mindspore.float32).reshape(()))
        else:
            row.append(self.zero)
        for index in range(len(self.rates)):
            if self.schedules[index]:  # noqa: SIM108 (a graph compiles only the branch it takes)
                rate = self.rates[index](self.global_step)
            else:
                rate = self.rates[index]
            row.append(ops.cast(rate, mindspore.float32).reshape(()))
        row.append(mark)
        written = self.write(self.notes, position % ROWS, ops.stack(row).reshape((1, -1)))
        if self.layers and self.layers == len(before):
            layer_row = ops.stack((mark, *before)).reshape((1, -1))
            written = ops.depend(written, self.write(self.layer_notes, position % LAYER_ROWS, layer_row))
        return ops.depend(reduced, written)
