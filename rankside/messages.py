"""The messages between ranks, relays and the aggregator, as records; `wire` turns them into bytes and back.

The limits are those that both sides keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from rankside.tags import Tag

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]

RANK_LIMIT = 1 << 17
TAG_LIMIT = 1 << 16
ROW_LIMIT = 1 << 16
TEXT_LIMIT_BYTES = 4096
STEP_LIMIT = 1 << 53
PID_LIMIT = (1 << 31) - 1  # what the kernel's calls take

NOBODY = -1  # the rank of a refusal that concerns the connection
GONE = "gone without a goodbye"  # the reason that a relay gives for a rank whose process has ended


class Hello(NamedTuple):
    """A rank enters, or a relay says that one has.

    run: the run's name, so that a rank of another job is refused. incarnation: which start of this rank it is,
    growing from one to the next. machine: where its pid means something, as `rankside.machine` says it.
    coordinates: its place in the parallel layout, such as {"dp": 0, "pp": 1}.
    """

    run: str
    rank: int
    incarnation: int
    world_size: int
    machine: str
    pid: int
    coordinates: Mapping[str, int]


class Tags(NamedTuple):
    """Entries of the sender's tag table from index `first` on."""

    first: int
    tags: tuple[Tag, ...]


class Block(NamedTuple):
    """Rows of reports that share a step and a tag table.

    rows: shape (rows, 3), int64: rank, incarnation, sequence of each row.
    wall_times: shape (rows,), float64: seconds since the epoch by the clock of each rank.
    tag_ids: shape (tags,), int64: indices into the sender's tag table.
    columns: shape (7, rows, tags), float64: statistics as `rankside.window.Column` orders them.
    """

    step: int
    rows: Int64Array
    wall_times: Float64Array
    tag_ids: Int64Array
    columns: Float64Array


class Beat(NamedTuple):
    """What one rank is doing, for how many seconds, and which blocks it has.

    oldest: the lowest sequence that it still keeps; those before are acknowledged or lost. sequence: the highest
    that it has sent on this connection before this message. dropped: logged entries that its full queue did not
    take. unwritten: events that its disk did not take.
    """

    rank: int
    incarnation: int
    oldest: int
    sequence: int
    step: int
    phase: str
    seconds: float
    dropped: int = 0
    unwritten: int = 0


class Heartbeat(NamedTuple):
    """Signs of life of one or more ranks."""

    beats: tuple[Beat, ...]


class Goodbye(NamedTuple):
    """A rank leaves after the block `sequence`; `reason` is empty where training ended as it should."""

    rank: int
    incarnation: int
    sequence: int
    reason: str


class Pulse(NamedTuple):
    """The aggregator's answer to heartbeats.

    rows: shape (rows, 5), int64: rank, incarnation, the sequence that the heartbeat named as sent, the highest
    received without a gap, the highest that is merged and on disk, up to which the rank may forget everything.
    Where less was received than sent, something was lost on the way and has to be sent again.
    """

    rows: Int64Array


class Unknown(NamedTuple):
    """This connection is new to the aggregator: begin again with HELLO."""


class Refused(NamedTuple):
    """Why a rank will not be served; or, where the rank is NOBODY, the whole connection."""

    rank: int
    incarnation: int
    reason: str


class Join(NamedTuple):
    """A relay asks which run this is."""


class Welcome(NamedTuple):
    """The run's name, which is also the name of its folder."""

    run: str


class Place(NamedTuple):
    """One tag's statistics across the ranks, as a rank is told them."""

    tag: str
    mean: float
    minimum: float
    maximum: float
    rank_of_min: int
    rank_of_max: int


class Advice(NamedTuple):
    """What the aggregator wants a rank to know or to do.

    dense_until: report every step up to this one. stacks: how often the rank was asked so far to write down the
    stacks of its threads. stop: why training should stop in an orderly way, or empty. step, places: the latest
    closed step and its statistics, for the rank's own log.
    """

    rank: int
    incarnation: int
    dense_until: int
    stacks: int
    stop: str
    step: int
    places: tuple[Place, ...]


Message = Hello | Tags | Block | Heartbeat | Goodbye | Pulse | Unknown | Refused | Join | Welcome | Advice
