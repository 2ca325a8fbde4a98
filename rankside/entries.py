"""What a training thread leaves for the rank's background thread: entries of its queue, and what the rank is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rankside.tags import Tag

    Value = float | Callable[[], float]

STARTING = "starting"
IN_A_LOOP = "in a loop of its own"  # until the loop says what it does
IN_A_CALLBACK = "in a callback"


class Phase(NamedTuple):
    """What the rank is doing, and since when by the monotonic clock."""

    name: str
    since: float


class Values(NamedTuple):
    """Numbers of one step. alone: make a report of its own of them, whatever the schedule."""

    step: int
    values: Mapping[str, Value]
    deferred: Sequence[Callable[[], Mapping[str, Value]]]
    wall_time: float
    alone: bool = False


class Summaries(NamedTuple):
    """Serialized Summary.Value messages of one step, made on the background thread."""

    step: int
    make: Callable[[], Iterable[bytes]]


class RawEvent(NamedTuple):
    """A serialized Event, made on the background thread piece by piece."""

    make: Callable[[], Iterable[bytes]]


class Session(NamedTuple):
    """Training begins, or begins again, after this step; None: before the first one that is logged."""

    initial_step: int | None


class Description(NamedTuple):
    """What a tag means."""

    tag: Tag


Entry = Values | Summaries | RawEvent | Session | Description
