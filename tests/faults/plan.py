"""Fault plans: what goes wrong in a run, as frozen data, by hand or generated from a seed.

    FaultPlan().kill(rank=2, step=30).cut(rank=0, step=80, seconds=0.5)

A fault happens when the rank reaches the step. A plan says nothing about how: `fleet.run` carries it out on
processes, `proxy.Proxy` on messages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

LAST_STEP = 200
WORLD_SIZE = 4


class Message(NamedTuple):
    """Something is done to `count` messages of a kind, from the first one after the step on.

    what: drop, delay, duplicate or reorder. kind: block, tags, hello, heartbeat, goodbye or pulse. seconds: of delay.
    """

    what: str
    rank: int
    step: int
    kind: str = "block"
    count: int = 1
    seconds: float = 0.0


class Cut(NamedTuple):
    """The connection breaks, with all that is on its way, and can be made again after so many seconds."""

    rank: int
    step: int
    seconds: float


class KillAggregator(NamedTuple):
    """SIGKILL; step None: when all ranks have ended, `seconds` after it was told so."""

    rank: int = 0
    step: int | None = None
    seconds: float = 0.0


class Await(NamedTuple):
    """The rank waits until the aggregator has merged the step, which takes all ranks to get there."""

    rank: int
    step: int


class FreezeAggregator(NamedTuple):
    """SIGSTOP before the first rank starts, SIGCONT when the last one has ended."""


class Kill(NamedTuple):
    """SIGKILL to a rank that nobody starts again."""

    rank: int
    step: int


class Freeze(NamedTuple):
    """SIGSTOP to a rank, SIGCONT after so many seconds."""

    rank: int
    step: int
    seconds: float


class Restart(NamedTuple):
    """SIGKILL to a rank, which then starts again after the step `checkpoint`."""

    rank: int
    step: int
    checkpoint: int


class RestartAll(NamedTuple):
    """SIGKILL to all ranks, which then start again after the step `checkpoint` in a world of this size."""

    rank: int
    step: int
    checkpoint: int
    world_size: int


class FillDisk(NamedTuple):
    """A disk is full for so many seconds, to the end where that is None. side: aggregator or rank."""

    side: str
    rank: int
    step: int
    seconds: float | None


class Rank(NamedTuple):
    """A rank that is otherwise than the others.

    start_seconds: how much later it starts. step_seconds: how much longer its steps take. every: how often it
    reports. clock_seconds: how wrong its clock is. repeated: a step that it reports again later, with other values.
    buffer_bytes: how much it keeps for the aggregator.
    """

    rank: int
    start_seconds: float = 0.0
    step_seconds: float = 0.0
    every: int = 1
    clock_seconds: float = 0.0
    repeated: int | None = None
    buffer_bytes: int = 64 << 20


Fault = (
    Message
    | Cut
    | KillAggregator
    | Await
    | FreezeAggregator
    | Kill
    | Freeze
    | Restart
    | RestartAll
    | FillDisk
    | Rank
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The faults of one run, and what the aggregator is told of waiting."""

    faults: tuple[Fault, ...] = ()
    max_wait_seconds: float = 30.0
    max_lag_steps: int = 1000

    def with_fault(self, fault: Fault) -> FaultPlan:
        return replace(self, faults=(*self.faults, fault))

    def of(self, kind: type) -> list:
        return [fault for fault in self.faults if isinstance(fault, kind)]

    def waiting(self, *, seconds: float = 30.0, steps: int = 1000) -> FaultPlan:
        return replace(self, max_wait_seconds=seconds, max_lag_steps=steps)

    def drop(self, *, rank: int, step: int, kind: str = "block", count: int = 1) -> FaultPlan:
        return self.with_fault(Message("drop", rank, step, kind, count))

    def delay(
        self, *, rank: int, step: int, seconds: float, kind: str = "block", count: int = 1
    ) -> FaultPlan:
        return self.with_fault(Message("delay", rank, step, kind, count, seconds))

    def duplicate(self, *, rank: int, step: int, kind: str = "block", count: int = 1) -> FaultPlan:
        return self.with_fault(Message("duplicate", rank, step, kind, count))

    def reorder(self, *, rank: int, step: int, kind: str = "block", count: int = 1) -> FaultPlan:
        return self.with_fault(Message("reorder", rank, step, kind, count))

    def cut(self, *, rank: int, step: int, seconds: float) -> FaultPlan:
        return self.with_fault(Cut(rank, step, seconds))

    def kill_aggregator(self, *, rank: int = 0, step: int | None = None, seconds: float = 0.0) -> FaultPlan:
        return self.with_fault(KillAggregator(rank, step, seconds))

    def await_merged(self, *, step: int) -> FaultPlan:
        """Have all ranks wait at the step until it is merged."""
        return replace(self, faults=(*self.faults, *(Await(rank, step) for rank in range(WORLD_SIZE))))

    def freeze_aggregator(self) -> FaultPlan:
        return self.with_fault(FreezeAggregator())

    def kill(self, *, rank: int, step: int) -> FaultPlan:
        return self.with_fault(Kill(rank, step))

    def freeze(self, *, rank: int, step: int, seconds: float) -> FaultPlan:
        return self.with_fault(Freeze(rank, step, seconds))

    def restart(self, *, rank: int, step: int, checkpoint: int) -> FaultPlan:
        return self.with_fault(Restart(rank, step, checkpoint))

    def restart_all(
        self, *, rank: int, step: int, checkpoint: int, world_size: int = WORLD_SIZE
    ) -> FaultPlan:
        return self.with_fault(RestartAll(rank, step, checkpoint, world_size))

    def fill_disk(self, *, side: str, rank: int, step: int, seconds: float | None) -> FaultPlan:
        return self.with_fault(FillDisk(side, rank, step, seconds))

    def rank(self, rank: int, **otherwise: object) -> FaultPlan:
        return self.with_fault(Rank(rank, **otherwise))


def generate(seed: int, count: int) -> list[FaultPlan]:
    """Return so many different plans of one to three faults; every kind of fault opens one of them in turn."""
    chance = random.Random(seed)
    plans: list[FaultPlan] = []
    while len(plans) < count:
        plan = _KINDS[len(plans) % len(_KINDS)](chance, FaultPlan())
        for _ in range(chance.choice((0, 1, 1, 2))):
            plan = chance.choice(_COMPANIONS)(chance, plan)
        if chance.random() < 0.3:
            plan = plan.waiting(seconds=chance.choice((0.3, 1.0)), steps=chance.choice((20, 1000)))
        if plan not in plans:
            plans.append(plan)
    return plans


def _rank(chance: random.Random) -> int:
    return chance.randrange(WORLD_SIZE)


def _step(chance: random.Random, low: int = 10, high: int = LAST_STEP - 20) -> int:
    return chance.randint(low, high)


def _drop(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    kind = chance.choice(("block", "block", "block", "pulse", "heartbeat"))
    return plan.drop(rank=_rank(chance), step=_step(chance), kind=kind, count=chance.choice((1, 5, 40)))


def _drop_end(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    kind = chance.choice(("goodbye", "block"))
    return plan.drop(rank=_rank(chance), step=LAST_STEP - 5, kind=kind, count=chance.choice((1, 3)))


def _drop_begin(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.drop(rank=_rank(chance), step=0, kind=chance.choice(("hello", "tags", "block")))


def _delay(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    kind = chance.choice(("block", "block", "pulse", "goodbye"))
    return plan.delay(
        rank=_rank(chance),
        step=_step(chance),
        seconds=chance.choice((0.1, 0.8)),
        kind=kind,
        count=chance.choice((1, 10, 50)),
    )


def _duplicate(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    kind = chance.choice(("block", "block", "hello", "tags", "goodbye", "pulse"))
    step = 0 if kind in {"hello", "tags"} else _step(chance)
    return plan.duplicate(rank=_rank(chance), step=step, kind=kind, count=chance.choice((1, 30)))


def _reorder(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    kind = chance.choice(("block", "block", "tags", "heartbeat", "goodbye"))
    step = 0 if kind == "tags" else _step(chance)
    return plan.reorder(rank=_rank(chance), step=step, kind=kind, count=chance.choice((1, 10)))


def _cut(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.cut(rank=_rank(chance), step=_step(chance), seconds=chance.choice((0.0, 0.7)))


def _kill_aggregator(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.kill_aggregator(rank=_rank(chance), step=_step(chance, 1, LAST_STEP))


def _kill_aggregator_twice(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    rank = _rank(chance)
    plan = plan.kill_aggregator(rank=rank, step=_step(chance, 5, 60))
    return plan.kill_aggregator(rank=rank, step=_step(chance, 130, LAST_STEP))


def _kill_aggregator_at_end(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.kill_aggregator(seconds=chance.choice((0.0, 0.02, 0.1)))


def _kill(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.kill(rank=_rank(chance), step=_step(chance))


def _freeze(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.freeze(rank=_rank(chance), step=_step(chance), seconds=chance.choice((0.5, 2.0)))


def _freeze_aggregator(_: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.freeze_aggregator()


def _fill_disk(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    side = chance.choice(("aggregator", "rank"))
    return plan.fill_disk(side=side, rank=_rank(chance), step=_step(chance, 10, 120), seconds=0.5)


def _restart_all(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    step = _step(chance, 30)
    return plan.restart_all(rank=_rank(chance), step=step, checkpoint=step - chance.choice((0, 3, 25)))


def _restart(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    step = _step(chance, 30)
    return plan.restart(rank=_rank(chance), step=step, checkpoint=step - chance.choice((0, 3, 25)))


def _shrink(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    step = _step(chance, 30)
    checkpoint = step - chance.choice((0, 10, 25))
    return plan.restart_all(rank=_rank(chance), step=step, checkpoint=checkpoint, world_size=2)


def _grow_again(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    step = _step(chance, 30, 80)
    plan = plan.restart_all(rank=_rank(chance), step=step, checkpoint=step - 20, world_size=2)
    step = _step(chance, 100)
    return plan.restart_all(rank=chance.randrange(2), step=step, checkpoint=step - chance.choice((0, 15)))


def _late_start(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.rank(_rank(chance), start_seconds=chance.choice((1.0, 2.5)))


def _slow(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.rank(_rank(chance), step_seconds=0.01)


def _every(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.rank(_rank(chance), every=chance.choice((2, 5)))


def _clock(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.rank(_rank(chance), clock_seconds=3600.0 * chance.choice((-7, -2, 3, 30)))


def _repeated(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    return plan.rank(_rank(chance), repeated=_step(chance))


def _overflow(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    for rank in range(WORLD_SIZE):
        plan = plan.rank(rank, buffer_bytes=chance.choice((2_000, 20_000)))
    return plan.freeze_aggregator()


_COMPANIONS = (
    _drop,
    _delay,
    _duplicate,
    _reorder,
    _cut,
    _freeze,
    _late_start,
    _slow,
    _every,
    _clock,
    _repeated,
)
_KINDS = (
    _drop,
    _drop_begin,
    _drop_end,
    _delay,
    _duplicate,
    _reorder,
    _cut,
    _kill_aggregator,
    _kill_aggregator_twice,
    _kill_aggregator_at_end,
    _kill,
    _freeze,
    _freeze_aggregator,
    _fill_disk,
    _restart_all,
    _restart,
    _shrink,
    _grow_again,
    _late_start,
    _slow,
    _every,
    _clock,
    _repeated,
    _overflow,
)
