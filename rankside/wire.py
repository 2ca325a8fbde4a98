"""The messages between ranks, relays and the aggregator, and their codec.

Both ends live here. A message is one msgpack array whose first element is its kind; arrays of numbers travel
as little-endian binary columns inside it, so that neither side loops over values:

    HELLO      0  [0, version, run, rank, incarnation, world_size, machine, pid, {coordinate: index}]
    TAGS       1  [1, index of the first, [[name, kind, unit, description], ...]]
    BLOCK      2  [2, step, rows: int64 (rows, 3), wall_times: float64 (rows,), tag_ids: uint32 (tags,),
                   columns: float64 (7, rows, tags)]
    HEARTBEAT  3  [3, [[rank, incarnation, oldest sequence kept, last sent, step, phase, seconds in phase,
                   entries dropped, events not written], ...]]
    GOODBYE    4  [4, rank, incarnation, sequence sent, reason]
    PULSE      5  [5, rows: int64 (rows, 5)]                                        (downward)
    UNKNOWN    6  [6]                                                               (downward)
    REFUSED    7  [7, rank, incarnation, reason]                                    (downward)
    JOIN       8  [8, version]
    WELCOME    9  [9, run]                                                          (downward)
    ADVICE    10  [10, rank, incarnation, dense until, stacks wanted, stop,
                   step, [[tag, mean, min, max, rank of min, rank of max], ...]]    (downward)

A rank's connection opens with HELLO and TAGS. A relay's opens with JOIN, which is answered by WELCOME, and
brings a HELLO for each of its ranks. TAGS is sent again when the
tag table grows, always before the first block that needs it. Blocks are numbered per rank and incarnation
from 1 without a gap. A peer whose connection the aggregator does not know is told UNKNOWN and begins again
with HELLO, TAGS and every block that was not acknowledged.

`decode` trusts nothing: it bounds sizes and depth and checks types and shapes, and raises `WireError` only.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from rankside.errors import WireError
from rankside.messages import (
    NOBODY,
    PID_LIMIT,
    RANK_LIMIT,
    ROW_LIMIT,
    STEP_LIMIT,
    TAG_LIMIT,
    TEXT_LIMIT_BYTES,
    Advice,
    Beat,
    Block,
    Goodbye,
    Heartbeat,
    Hello,
    Join,
    Message,
    Place,
    Pulse,
    Refused,
    Tags,
    Unknown,
    Welcome,
)
from rankside.tags import NAME_LIMIT_BYTES, Tag, TagKind, is_tag_name
from rankside.window import N_COLUMNS, Column

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]

VERSION = 1

MESSAGE_LIMIT_BYTES = 64 << 20

_HELLO, _TAGS, _BLOCK, _HEARTBEAT, _GOODBYE, _PULSE, _UNKNOWN, _REFUSED, _JOIN, _WELCOME, _ADVICE = range(11)


def encode(message: Message) -> bytes:
    """Return the message as bytes."""
    packed: bytes = msgpack.packb(_WRITERS[type(message)](message))
    return packed


def _write_block(block: Block) -> list[object]:
    arrays = ((block.rows, "<i8"), (block.wall_times, "<f8"), (block.tag_ids, "<u4"), (block.columns, "<f8"))
    return [_BLOCK, block.step, *(_bytes(array, dtype) for array, dtype in arrays)]


def _bytes(array: npt.NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def decode(data: bytes) -> Message:
    """Return the message in `data`.

    Raises `WireError` for anything that is not exactly one valid message within the limits.
    """
    if len(data) > MESSAGE_LIMIT_BYTES:
        raise WireError(f"message of {len(data)} bytes; at most {MESSAGE_LIMIT_BYTES} are accepted")
    try:
        fields = msgpack.unpackb(data, use_list=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise WireError(f"not a msgpack message: {error}") from error
    if not isinstance(fields, tuple) or not fields or type(fields[0]) is not int:
        raise WireError("not a message: an array that begins with the kind of message is expected")
    reader = _READERS.get(fields[0])
    if reader is None:
        raise WireError(f"message of unknown kind {fields[0]}")
    size, read = reader
    if len(fields) != size:
        raise WireError(f"message of kind {fields[0]} with {len(fields)} fields instead of {size}")
    message: Message = read(*fields[1:])
    return message


def _integer(value: Any, name: str, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise WireError(f"{name} must be an integer from 0 to {limit}, not {_shown(value)}")
    return value


def _text(value: Any, name: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    if not isinstance(value, str) or len(value.encode("utf-8", "surrogatepass")) > limit_bytes:
        raise WireError(f"{name} must be a string of at most {limit_bytes} bytes, not {_shown(value)}")
    return value


def _array(value: Any, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the binary `value` as an array of `shape`, in which one dimension may be -1 for any length."""
    if not isinstance(value, bytes):
        raise WireError(f"{name} must be binary, not {_shown(value)}")
    whole = abs(math.prod(shape)) * int(dtype[2])
    if len(value) != whole and (-1 not in shape or len(value) % whole):
        raise WireError(f"{name} has {len(value)} bytes, which do not make {dtype} of shape {shape}")
    return np.frombuffer(value, dtype).reshape(shape)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_version(version: Any) -> None:
    if type(version) is not int or version != VERSION:
        raise WireError(
            f"protocol version {_shown(version)}; this side speaks {VERSION}: use one crossrank version"
        )


def _read_hello(  # noqa: PLR0917 (the order of the fields on the wire)
    version: Any,
    run: Any,
    rank: Any,
    incarnation: Any,
    world_size: Any,
    machine: Any,
    pid: Any,
    coordinates: Any,
) -> Hello:
    _check_version(version)
    if not isinstance(coordinates, dict) or len(coordinates) > 16:
        raise WireError("coordinates must be a map of at most 16 entries")
    world_size = _integer(world_size, "world size", RANK_LIMIT)
    rank = _integer(rank, "rank", RANK_LIMIT - 1)
    if rank >= world_size:
        raise WireError(f"rank {rank} does not fit a world size of {world_size}")
    return Hello(
        run=_text(run, "run name", NAME_LIMIT_BYTES),
        rank=rank,
        incarnation=_integer(incarnation, "incarnation", STEP_LIMIT),
        world_size=world_size,
        machine=_text(machine, "machine", NAME_LIMIT_BYTES),
        pid=_integer(pid, "pid", PID_LIMIT),
        coordinates={
            _text(k, "coordinate", 64): _integer(v, "coordinate index", RANK_LIMIT)
            for k, v in coordinates.items()
        },
    )


def _read_tags(first: Any, entries: Any) -> Tags:
    first = _integer(first, "index of the first tag", TAG_LIMIT)
    if not isinstance(entries, tuple) or first + len(entries) > TAG_LIMIT:
        raise WireError(f"a tag table holds at most {TAG_LIMIT} tags")
    return Tags(first, tuple(_read_tag(entry) for entry in entries))


def _read_tag(entry: Any) -> Tag:
    if not isinstance(entry, tuple) or len(entry) != 4:
        raise WireError(f"a tag has four fields, not {_shown(entry)}")
    name, kind, unit, description = entry
    try:
        kind = TagKind(kind)
    except ValueError as error:
        raise WireError(
            f"tag kind {_shown(kind)}; one of {[k.value for k in TagKind]} is expected"
        ) from error
    if not is_tag_name(name):
        raise WireError(
            f"tag name {_shown(name)}: a printable text of 1 to {NAME_LIMIT_BYTES} bytes is expected"
        )
    return Tag(name, kind, _text(unit, "unit", 64), _text(description, "description"))


def _read_block(step: Any, rows: Any, wall_times: Any, tag_ids: Any, columns: Any) -> Block:
    row_array = _array(rows, "rows", "<i8", (-1, 3))
    n_rows = len(row_array)
    if not 0 < n_rows <= ROW_LIMIT:
        raise WireError(f"a block has 1 to {ROW_LIMIT} rows, not {n_rows}")
    if int(row_array.min()) < 0 or int(row_array[:, 0].max()) >= RANK_LIMIT:
        raise WireError(f"a row names a rank outside 0 to {RANK_LIMIT - 1}, or a negative sequence")
    if not isinstance(tag_ids, bytes):
        raise WireError(f"tag ids must be binary, not {_shown(tag_ids)}")
    ids = _read_tag_ids(tag_ids)
    times = _array(wall_times, "wall times", "<f8", (n_rows,))
    if not np.isfinite(times).all():
        raise WireError("a wall time is not finite")
    return Block(
        step=_integer(step, "step", STEP_LIMIT),
        rows=row_array,
        wall_times=times,
        tag_ids=ids,
        columns=_statistics(_array(columns, "columns", "<f8", (N_COLUMNS, n_rows, len(ids)))),
    )


def _statistics(columns: Float64Array) -> Float64Array:
    """Return the columns if they can be statistics of windows."""
    counts = columns[: Column.NONFINITE + 1]
    # Comparisons that NaN fails as well.
    if not (counts.min() >= 0 and counts.max() <= STEP_LIMIT):
        raise WireError(f"a count is not a number from 0 to {STEP_LIMIT}")
    described = np.isfinite(columns[Column.MEAN : Column.LAST])
    if not described.all() and not described[:, columns[Column.COUNT] > 0].all():
        raise WireError("mean, M2, minimum or maximum of finite values is not finite")
    return columns


@lru_cache(maxsize=256)
def _read_tag_ids(value: bytes) -> Int64Array:
    """Return the tag ids; the same bytes give the same array, since most blocks repeat those of the last step."""
    ids: Int64Array = _array(value, "tag ids", "<u4", (-1,)).astype(np.int64)
    if not 0 < len(ids) <= TAG_LIMIT or np.any(np.diff(ids) <= 0):
        raise WireError(f"tag ids must be 1 to {TAG_LIMIT} strictly ascending indices")
    ids.flags.writeable = False
    return ids


def _read_heartbeat(entries: Any) -> Heartbeat:
    if not isinstance(entries, tuple) or len(entries) > ROW_LIMIT:
        raise WireError(f"a heartbeat holds at most {ROW_LIMIT} ranks")
    return Heartbeat(tuple(_read_beat(entry) for entry in entries))


def _read_beat(entry: Any) -> Beat:
    if not isinstance(entry, tuple) or len(entry) != 9:
        raise WireError(f"a beat has nine fields, not {_shown(entry)}")
    rank, incarnation, oldest, sequence, step, phase, seconds, dropped, unwritten = entry
    if not isinstance(seconds, float) or not np.isfinite(seconds):
        raise WireError(f"seconds must be a finite float, not {_shown(seconds)}")
    return Beat(
        _integer(rank, "rank", RANK_LIMIT - 1),
        _integer(incarnation, "incarnation", STEP_LIMIT),
        _integer(oldest, "oldest sequence", STEP_LIMIT),
        _integer(sequence, "sequence", STEP_LIMIT),
        _integer(step, "step", STEP_LIMIT),
        _text(phase, "phase", NAME_LIMIT_BYTES),
        seconds,
        _integer(dropped, "dropped entries", STEP_LIMIT),
        _integer(unwritten, "unwritten events", STEP_LIMIT),
    )


def _read_goodbye(rank: Any, incarnation: Any, sequence: Any, reason: Any) -> Goodbye:
    return Goodbye(
        _integer(rank, "rank", RANK_LIMIT - 1),
        _integer(incarnation, "incarnation", STEP_LIMIT),
        _integer(sequence, "sequence", STEP_LIMIT),
        _text(reason, "reason"),
    )


def _read_pulse(rows: Any) -> Pulse:
    return Pulse(_array(rows, "rows", "<i8", (-1, 5)))


def _read_unknown() -> Unknown:
    return Unknown()


def _read_refused(rank: Any, incarnation: Any, reason: Any) -> Refused:
    rank = rank if rank == NOBODY else _integer(rank, "rank", RANK_LIMIT - 1)
    return Refused(rank, _integer(incarnation, "incarnation", STEP_LIMIT), _text(reason, "reason"))


def _read_join(version: Any) -> Join:
    _check_version(version)
    return Join()


def _read_welcome(run: Any) -> Welcome:
    return Welcome(_text(run, "run name", NAME_LIMIT_BYTES))


def _read_advice(  # noqa: PLR0917 (the order of the fields on the wire)
    rank: Any, incarnation: Any, dense_until: Any, stacks: Any, stop: Any, step: Any, places: Any
) -> Advice:
    if not isinstance(places, tuple) or len(places) > TAG_LIMIT:
        raise WireError(f"advice holds at most {TAG_LIMIT} tags")
    return Advice(
        _integer(rank, "rank", RANK_LIMIT - 1),
        _integer(incarnation, "incarnation", STEP_LIMIT),
        _integer(dense_until, "last dense step", STEP_LIMIT),
        _integer(stacks, "requests for stacks", STEP_LIMIT),
        _text(stop, "reason to stop"),
        _integer(step, "step", STEP_LIMIT),
        tuple(_read_place(place) for place in places),
    )


def _read_place(entry: Any) -> Place:
    if not isinstance(entry, tuple) or len(entry) != 6:
        raise WireError(f"a place has six fields, not {_shown(entry)}")
    tag, *numbers = entry
    mean, minimum, maximum, rank_of_min, rank_of_max = numbers
    if not all(isinstance(number, float) for number in (mean, minimum, maximum)):
        raise WireError(f"the statistics of a place must be floats, not {_shown(entry)}")
    if not all(type(rank) is int and -1 <= rank < RANK_LIMIT for rank in (rank_of_min, rank_of_max)):
        raise WireError(f"a place names ranks from -1 to {RANK_LIMIT - 1}, not {_shown(entry)}")
    return Place(_text(tag, "tag name", NAME_LIMIT_BYTES), mean, minimum, maximum, rank_of_min, rank_of_max)


# Makes the fields on the wire, the kind included.
_WRITERS: dict[type, Callable[[Any], list[object]]] = {
    Hello: lambda m: [_HELLO, VERSION, *m[:-1], dict(m.coordinates)],
    Tags: lambda m: [
        _TAGS,
        m.first,
        [[tag.name, tag.kind.value, tag.unit, tag.description] for tag in m.tags],
    ],
    Block: _write_block,
    Heartbeat: lambda m: [_HEARTBEAT, [list(beat) for beat in m.beats]],
    Goodbye: lambda m: [_GOODBYE, *m],
    Pulse: lambda m: [_PULSE, _bytes(m.rows, "<i8")],
    Unknown: lambda _: [_UNKNOWN],
    Refused: lambda m: [_REFUSED, *m],
    Join: lambda _: [_JOIN, VERSION],
    Welcome: lambda m: [_WELCOME, m.run],
    Advice: lambda m: [_ADVICE, *m[:-1], [list(place) for place in m.places]],
}

# Number of fields on the wire, the kind included, and the function that reads the others.
_READERS: dict[int, tuple[int, Any]] = {
    _HELLO: (9, _read_hello),
    _TAGS: (3, _read_tags),
    _BLOCK: (6, _read_block),
    _HEARTBEAT: (2, _read_heartbeat),
    _GOODBYE: (5, _read_goodbye),
    _PULSE: (2, _read_pulse),
    _UNKNOWN: (1, _read_unknown),
    _REFUSED: (4, _read_refused),
    _JOIN: (2, _read_join),
    _WELCOME: (2, _read_welcome),
    _ADVICE: (8, _read_advice),
}
