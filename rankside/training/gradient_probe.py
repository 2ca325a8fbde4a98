"""Collects gradient norms, and notes learning rate and loss scale as the step itself sees them.

Plain MindSpore returns no gradient norm. The probe takes the place of the train cell's gradient reducer, which
MindSpore's and mindformers' train cells call once a step on all gradients, and calls it in turn:

    gradients of this rank --|-- reducer (all-reduce) --|--> optimizer
                        local norm                 global norm

A train cell of the user may accumulate gradients and call it at some steps only; how often it has run is then
noted at the end of each step.

What it finds it writes into a ring beside the parameters, on the device, and the background thread copies the
ring when it needs a row that its last copy lacks. So the training thread waits for nothing, one copy serves all
the steps that ended since the last one, in a dataset sink too, and no step is given another step's numbers,
since every row says whose it is. A row is lost, and that is counted, when the background thread is as many steps
late as the ring has rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import mindspore
from mindspore import nn

from rankside.tags import Tag, TagKind
from rankside.training.collector import Collector
from rankside.training.optimizer_rates import distinct_rates, rate_tags
from rankside.training.probed_reducer import ProbedReducer
from rankside.training.rate_table import RateTable, table_of
from rankside.training.ring import Ring
from rankside.training.tensor_value import fetch_mean, snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankside.training.collector import Draft, Training

logger = logging.getLogger("crossrank")

# A compiled graph keeps the probe it was compiled with, so a train cell keeps its probe as long as it lives.
_probes: WeakKeyDictionary[Any, ProbedReducer] = WeakKeyDictionary()


class GradientProbe(Collector):
    """Tags `local-grad-norm` and `grad-norm`; also `learning-rate` and `loss-scale`.

    layers_every: steps between two records of every parameter's local norm, `local-grad-norm/<parameter>`;
        0 for none.

    Norms are those of the gradients that the optimizer applies: divided by the loss scale, and after the
    reduction summed or averaged over the ranks as `gradients_mean` says. Where several ranks train without a
    gradient reducer, there is no `grad-norm`. Where a train cell accumulates gradients, they are those of what it
    hands to its reducer: of the accumulated gradients, at the step that reduces them and at no other, or of each
    step's own, where it reduces first. Under semi-automatic and automatic parallelism gradients are pieces of
    tensors, and the probe stays away.
    """

    name = "gradient probe"

    def __init__(self, *, layers_every: int = 0) -> None:
        self._layers_every = layers_every
        self._network: Any = None
        self._reading: _Reading | None = None
        self._count: Any = None
        self._runs: Any = 0

    @property
    def notes_norms(self) -> bool:
        """Whether the probe is in place."""
        return self._reading is not None

    @property
    def notes_learning_rate(self) -> bool:
        """Whether the probe records the learning rate."""
        return self._reading is not None and bool(self._reading.rates)

    @property
    def notes_loss_scale(self) -> bool:
        """Whether the probe records the loss scale."""
        return self._reading is not None and self._reading.has_scale

    def train_begin(self, training: Training) -> None:
        """Take the reducer's place; where that cannot be, say why, and record nothing."""
        self._reading = None
        network, optimizer = training.network, training.optimizer
        reason = _obstacle(network)
        if reason:
            logger.warning("gradient norms are not recorded: %s", reason)
            return
        probe = _probes.get(network)
        rates = distinct_rates(optimizer)
        noted = [] if probe is None else probe.rates
        tables = [None if _among(noted, rate) else table_of(rate, training) for rate in rates]
        if probe is None:
            probe = _probes[network] = ProbedReducer(
                network.grad_reducer,
                rates=[rate for rate, table in zip(rates, tables, strict=True) if table is None],
                global_step=getattr(optimizer, "global_step", None),
                scale=getattr(network, "scale_sense", None),
                layers=len(training.weights) if self._layers_every else 0,
            )
        known = all(table or _among(probe.rates, rate) for rate, table in zip(rates, tables, strict=True))
        network.grad_reducer = probe
        self._network = network
        self._count = None if _reduces_once_a_step(network) else probe.count
        self._runs = int(probe.count.item())
        self._reading = _Reading(
            ring=Ring(probe.notes, closed=True),
            layer_ring=Ring(probe.layer_notes, closed=False),
            unscale=1.0 / getattr(optimizer, "loss_scale", 1.0),
            has_total=probe.reduces or training.world_size == 1,
            has_scale=probe.scale is not None,
            rates=list(zip([tag.name for tag in rate_tags(len(rates))], tables, strict=False))
            if known
            else [],
            layer_names=[f"local-grad-norm/{p.name}" for p in training.weights] if probe.layers else [],
        )
        self._log_earlier = training.recorder.log
        training.recorder.describe(_norm_tag(probe), *map(_layer_tag, self._reading.layer_names))

    def train_end(self) -> None:
        """Give the train cell its own reducer back; a graph that was compiled with the probe keeps it."""
        if self._reading is not None and isinstance(self._network.grad_reducer, ProbedReducer):
            self._network.grad_reducer = self._network.grad_reducer.reducer

    def step_end(self, draft: Draft) -> None:
        """Add what the probe noted in this step, and in the steps of the same dataset sink before it."""
        reading = self._reading
        if reading is None:
            return
        for _, table in reading.rates:
            if table is not None:
                table.reach(draft.step)
        before = self._runs
        self._runs = before + draft.steps if self._count is None else snapshot(self._count)
        runs = _Runs(before, self._runs, draft.steps)
        for earlier in range(draft.steps - 1, 0, -1):
            fetch = partial(reading.numbers, runs, earlier)
            self._log_earlier(draft.step - earlier, {}, deferred=(fetch,))
        draft.deferred.append(partial(reading.numbers, runs))
        every = self._layers_every
        if reading.layer_names and draft.step // every > (draft.step - draft.steps) // every:
            draft.deferred.append(partial(reading.layers, runs))


class _Runs(NamedTuple):
    """How often the probe had run before and after a step, or so many steps of a dataset sink: numbers or tensors."""

    before: Any
    after: Any
    steps: int

    def of_step(self, earlier: int) -> int | None:
        """Return the run of the step that many steps before the last one, None where there was none."""
        before, after = _whole(self.before), _whole(self.after)
        if after - before == self.steps:
            return after - earlier
        return None if earlier or after == before else after


def _whole(number: Any) -> int:
    return number if isinstance(number, int) else int(fetch_mean(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What the background thread has to know to read the probe's rings.

    unscale: what takes the optimizer's own loss scale out of a gradient. has_total: whether the norm after the
    reducer is the global one. rates: the learning rates' tags, each with the table in which it is found by the
    optimizer's count, or None where the ring holds the rate itself.
    """

    ring: Ring
    layer_ring: Ring
    unscale: float
    has_total: bool
    has_scale: bool
    rates: Sequence[tuple[str, RateTable | None]]
    layer_names: Sequence[str]

    def numbers(self, runs: _Runs, earlier: int = 0) -> Mapping[str, float]:
        run = runs.of_step(earlier)
        if run is None:
            return {}
        local, total, scale, count, *rates = self.ring.row(run).tolist()
        noted = iter(rates)
        values = {name: table.at(int(count)) if table else next(noted) for name, table in self.rates}
        values["local-grad-norm"] = sqrt(2.0 * local) * self.unscale
        if self.has_total:
            values["grad-norm"] = sqrt(2.0 * total) * self.unscale
        if self.has_scale:
            values["loss-scale"] = scale
        return values

    def layers(self, runs: _Runs) -> Mapping[str, float]:
        run = runs.of_step(0)
        if run is None:
            return {}
        halves = self.layer_ring.row(run).tolist()
        return {
            name: sqrt(2.0 * half) * self.unscale for name, half in zip(self.layer_names, halves, strict=True)
        }


def _among(rates: Sequence[Any], rate: Any) -> bool:
    return any(rate is other for other in rates)


def _reduces_once_a_step(network: Any) -> bool:
    """Whether what the train cell does in a step is known: it is MindSpore's or mindformers'."""
    return type(network).construct.__module__.partition(".")[0] in ("mindspore", "mindformers")


def _norm_tag(probe: ProbedReducer) -> Tag:
    description = "L2 norm of the gradients that the optimizer applies"
    if probe.reduces:
        description += (
            ", averaged over ranks" if getattr(probe.reducer, "mean", False) else ", summed over ranks"
        )
    return Tag("grad-norm", TagKind.REPLICATED, "", description)


def _layer_tag(name: str) -> Tag:
    return Tag(name, TagKind.LOCAL, "", "L2 norm of this rank's gradient of one parameter")


def _obstacle(network: Any) -> str:
    """Return why the probe cannot be put into this train cell, or nothing."""
    if not isinstance(getattr(network, "grad_reducer", None), nn.Cell):
        return f"the train cell {type(network).__name__} has no gradient reducer"
    parallel_mode = mindspore.get_auto_parallel_context("parallel_mode")
    if parallel_mode not in ("stand_alone", "data_parallel"):
        return f"with parallel mode {parallel_mode}, gradients are pieces of tensors"
    compiled = mindspore.get_context("mode") == mindspore.GRAPH_MODE and network.compile_cache
    if compiled and network not in _probes:
        return "the train cell was compiled before the monitor saw it"
    return ""
