"""What both gradient probes share: into which train cells they can be put, and how norms are made of what they note.

A half square is half the sum of a gradient's squares, which MindSpore computes in one kernel.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore import nn

from rankside.tags import Tag, TagKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rankside.training.collector import Training


class Norms:
    """Makes values by tag of half squares: `local-grad-norm`, `grad-norm`, and `local-grad-norm/<parameter>`.

    reducer: the train cell's own. layers: whether single parameters' norms are wanted.

    Norms are those of the gradients that the optimizer applies: divided by the loss scale, and after the
    reduction summed or averaged over the ranks as `gradients_mean` says. Where several ranks train without a
    gradient reducer, there is no `grad-norm`.
    """

    def __init__(self, training: Training, reducer: Any, *, layers: bool) -> None:
        self.reduces = reduces(reducer)
        self._unscale = 1.0 / getattr(training.optimizer, "loss_scale", 1.0)
        self._has_total = self.reduces or training.world_size == 1
        self.layer_names = [f"local-grad-norm/{p.name}" for p in training.weights] if layers else []
        training.recorder.describe(self._tag(reducer), *map(_layer_tag, self.layer_names))

    def of_all(self, local: float, total: float) -> dict[str, float]:
        """Return the norms of all gradients, before and after the reduction."""
        values = {"local-grad-norm": sqrt(2.0 * local) * self._unscale}
        if self._has_total:
            values["grad-norm"] = sqrt(2.0 * total) * self._unscale
        return values

    def of_each(self, halves: Iterable[float]) -> dict[str, float]:
        """Return the norm of each gradient, before the reduction."""
        return {
            name: sqrt(2.0 * half) * self._unscale
            for name, half in zip(self.layer_names, halves, strict=True)
        }

    def _tag(self, reducer: Any) -> Tag:
        description = "L2 norm of the gradients that the optimizer applies"
        if self.reduces:
            description += f", {'averaged' if getattr(reducer, 'mean', False) else 'summed'} over ranks"
        return Tag("grad-norm", TagKind.REPLICATED, "", description)


class EagerTurns:
    """Tells at which steps norms are taken where a train cell runs operation by operation.

    Those are the first of the training, every `every`-th, those that record every parameter's norm (`layers_every`,
    0 for none), and those for which the aggregator asks for dense reports.
    """

    def __init__(self, training: Training, *, every: int, layers_every: int) -> None:
        self._recorder = training.recorder
        self._first = training.base + training.counted + 1
        self._every = every
        self._layers_every = layers_every

    def due(self, step: int) -> bool:
        """Whether norms are taken at this step."""
        in_turn = step == self._first or step % self._every == 0 or step <= self._recorder.dense_until
        return in_turn or self.layers_due(step)

    def layers_due(self, step: int) -> bool:
        """Whether every parameter's norm is."""
        return self._layers_every > 0 and step % self._layers_every == 0


def reduces(reducer: Any) -> bool:
    """Whether the reducer changes gradients; a rank alone has one that does not."""
    return not isinstance(reducer, nn.Identity)


def obstacle(network: Any) -> str:
    """Return why no probe can be put into this train cell, or nothing."""
    if not isinstance(getattr(network, "grad_reducer", None), nn.Cell):
        return f"the train cell {type(network).__name__} has no gradient reducer"
    parallel_mode = mindspore.get_auto_parallel_context("parallel_mode")
    if parallel_mode not in ("stand_alone", "data_parallel"):
        return f"with parallel mode {parallel_mode}, gradients are pieces of tensors"
    if any(_looks_up_sparsely(cell) for _, cell in network.cells_and_names()):
        return "the gradients of an embedding are sparse, with rows that may occur several times"
    return ""


def _looks_up_sparsely(cell: Any) -> bool:
    operators = {operator.name for operator in vars(cell).get("_primitives", {}).values()}
    # MindSpore's own cell has the second one in any case, and says whether it uses it.
    return "SparseGatherV2" in operators or ("EmbeddingLookup" in operators and getattr(cell, "sparse", True))


def is_known(network: Any) -> bool:
    """Whether it is known what the train cell does in a step, since it is MindSpore's or mindformers'."""
    return type(network).construct.__module__.partition(".")[0] in ("mindspore", "mindformers")


def runs_eagerly(network: Any) -> bool:
    """Whether the train cell's own code is run operation by operation, and never compiled."""
    eager = mindspore.get_context("mode") == mindspore.PYNATIVE_MODE
    return eager and is_known(network) and not hasattr(type(network).construct, "__wrapped__")


def _layer_tag(name: str) -> Tag:
    return Tag(name, TagKind.LOCAL, "", "L2 norm of this rank's gradient of one parameter")
