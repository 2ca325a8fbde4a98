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
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import mindspore

from rankside.training.collector import Collector
from rankside.training.gradient_norms import EagerTurns, Norms, is_known, obstacle, runs_eagerly
from rankside.training.optimizer_rates import distinct_rates, rate_tags
from rankside.training.probe_reading import Reading, Runs, whole
from rankside.training.probed_reducer import ProbedReducer
from rankside.training.rate_table import table_of
from rankside.training.ring import Ring
from rankside.training.tensor_value import snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankside.training.collector import Draft, Training
    from rankside.training.rate_table import RateTable

logger = logging.getLogger("crossrank")

# A compiled graph keeps the probe it was compiled with, so a train cell keeps its probe as long as it lives.
_probes: WeakKeyDictionary[Any, ProbedReducer] = WeakKeyDictionary()

_PATIENCE_STEPS = 100  # beyond which a train cell that has not called its reducer is told of


class GradientProbe(Collector):
    """The tags of `Norms`, and `learning-rate` and `loss-scale`.

    eager_every: steps between two records where a train cell of the user runs operation by operation, which only
    shows when it runs. layers_every: steps between two records of every parameter's norm; 0 for none.

    Where a train cell accumulates gradients, norms are those of what it hands to its reducer: of the accumulated
    gradients, at the step that reduces them and at no other, or of each step's own, where it reduces first. Under
    semi-automatic and automatic parallelism gradients are pieces of tensors, and the probe stays away, as it does
    where `EagerProbe` serves.
    """

    name = "gradient probe"

    def __init__(self, *, eager_every: int, layers_every: int = 0) -> None:
        self._eager_every = eager_every
        self._layers_every = layers_every
        self._network: Any = None
        self._reading: Reading | None = None
        self._tables: list[RateTable] = []
        # Of a user's train cell, which may do anything in a step:
        self._probe: Any = None
        self._turns: EagerTurns | None = None
        self._count: Any = None
        self._steps = 0
        self._told = False
        self._runs: Any = 0
        self._first_run = 0

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
        if reason or runs_eagerly(network):
            return
        # A cell of the user may not call its reducer at each step, or not at all.
        rates = distinct_rates(optimizer) if is_known(network) else []
        tables = _tables(rates, training)
        probe = _probes.get(network)
        if probe is None:
            probe = _probes[network] = ProbedReducer(
                network.grad_reducer,
                rates=[None if table else rate for rate, table in zip(rates, tables, strict=True)],
                global_step=getattr(optimizer, "global_step", None),
                scale=getattr(network, "scale_sense", None) if is_known(network) else None,
                layers=len(training.weights) if self._layers_every else 0,
            )
        network.grad_reducer = probe
        self._network, self._probe = network, probe
        self._snapshot = snapshots()
        self._turns = self._count = None
        self._steps = 0
        if not is_known(network):
            self._count = probe.count
            self._turns = EagerTurns(training, every=self._eager_every, layers_every=self._layers_every)
        self._runs = self._first_run = int(probe.count.item())
        self._reading = Reading(
            ring=Ring(probe.notes, closed=True),
            layer_ring=Ring(probe.layer_notes, closed=False),
            norms=Norms(training, probe.reducer, layers=probe.layers > 0),
            has_scale=probe.scale is not None,
            rates=_readings_of_rates(probe, tables),
        )
        self._tables = [table for table in self._reading.rates.values() if table is not None]
        self._hand_over = training.recorder.hand_over

    def train_end(self) -> None:
        """Give the train cell its own reducer back; a graph that was compiled with the probe keeps it."""
        if self._reading is None:
            return
        if isinstance(self._network.grad_reducer, ProbedReducer):
            self._network.grad_reducer = self._network.grad_reducer.reducer
        if self._steps and self._count is not None:
            self._tell_if_idle(self._count)

    def step_begin(self, step: int) -> None:
        """Have the next gradients noted where that is due."""
        if self._turns is not None and self._turns.due(step):
            self._probe.due = True

    def step_end(self, draft: Draft) -> None:
        """Add what the probe noted in this step, and in the steps of the same dataset sink before it."""
        reading = self._reading
        if reading is None:
            return
        before = self._runs
        if self._count is None:
            self._runs = before + draft.steps
        else:
            self._runs = self._snapshot(self._count)
            self._follow_cell(draft)
        runs = Runs(before, self._runs, draft.steps)
        for table in self._tables:
            table.reach(draft.step)
        for earlier in range(draft.steps - 1, 0, -1):
            fetch = partial(reading.numbers, runs, earlier)
            self._hand_over(draft.step - earlier, {}, (fetch,))
        draft.deferred.append(partial(reading.numbers, runs))
        every = self._layers_every
        if every and draft.step // every > (draft.step - draft.steps) // every and reading.norms.layer_names:
            draft.deferred.append(partial(reading.layers, runs))

    def _follow_cell(self, draft: Draft) -> None:
        """Leave a user's cell alone until norms are due again, and find out whether it calls its reducer at all."""
        if self._probe.noted:
            self._probe.noted = self._probe.due = False
        early = self._steps < _PATIENCE_STEPS
        self._steps += draft.steps
        if early and self._steps >= _PATIENCE_STEPS:
            draft.deferred.append(partial(self._tell_if_idle, self._runs))

    def _tell_if_idle(self, count: Any) -> Mapping[str, float]:
        if not self._told and whole(count) == self._first_run:
            self._told = True
            logger.warning(
                "gradient norms are not recorded: in %d steps, the train cell %s has not called its gradient reducer; "
                "they are taken where it does, as in: gradients = self.grad_reducer(gradients)",
                self._steps,
                type(self._network).__name__,
            )
        return {}


def _tables(rates: Sequence[Any], training: Training) -> list[RateTable | None]:
    """Return what knows each rate by the optimizer's count of steps, as far as a float32 can hold that."""
    tables = [table_of(rate, training) for rate in rates]
    return [table if table is not None and table.last < 1 << 24 else None for table in tables]


def _readings_of_rates(
    probe: ProbedReducer, tables: Sequence[RateTable | None]
) -> dict[str, RateTable | None]:
    """Return, by tag, the table that turns what was noted into the rate, or None where it is the rate.

    Nothing where a probe that an earlier training has put in place notes a count that no table knows.
    """
    noted = list(zip(rate_tags(len(probe.rates)), probe.counts, tables, strict=False))
    if any(counts and table is None for _, counts, table in noted):
        return {}
    return {tag.name: table if counts else None for tag, counts, table in noted}


def _obstacle(network: Any) -> str:
    """Return why this probe cannot be put into this train cell, or nothing."""
    compiled = mindspore.get_context("mode") == mindspore.GRAPH_MODE and getattr(network, "compile_cache", ())
    if compiled and network not in _probes:
        return "the train cell was compiled before the monitor saw it"
    return obstacle(network)
