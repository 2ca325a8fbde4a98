"""The codec: both ends agree on every message, and nothing but a valid message is accepted."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rankside import messages, wire
from rankside.errors import WireError
from rankside.tags import Tag, TagKind

sequences = st.integers(0, messages.STEP_LIMIT)
ranks = st.integers(0, messages.RANK_LIMIT - 1)
texts = st.text(max_size=100)
names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=100)
tags = st.builds(Tag, names, st.sampled_from(TagKind), st.text(max_size=16), texts)


@st.composite
def hellos(draw):
    world_size = draw(st.integers(1, messages.RANK_LIMIT))
    return messages.Hello(
        draw(texts),
        draw(st.integers(0, world_size - 1)),
        draw(sequences),
        world_size,
        draw(texts),
        draw(st.integers(0, messages.PID_LIMIT)),
        draw(st.dictionaries(st.text(max_size=8), st.integers(0, messages.RANK_LIMIT), max_size=16)),
    )


@st.composite
def blocks(draw):
    n_rows, ids = draw(st.integers(1, 5)), sorted(draw(st.sets(st.integers(0, 1000), min_size=1, max_size=6)))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    columns = draw(arrays.arrays(np.float64, (7, n_rows, len(ids)), elements=finite))
    columns[:2] = draw(arrays.arrays(np.float64, (2, n_rows, len(ids)), elements=st.integers(0, 1 << 40)))
    columns[2:6][:, columns[0] == 0] = np.nan
    return messages.Block(
        draw(sequences),
        np.array([[draw(ranks), draw(sequences), draw(sequences)] for _ in range(n_rows)], np.int64),
        draw(arrays.arrays(np.float64, n_rows, elements=finite)),
        np.array(ids, np.int64),
        columns,
    )


beats = st.builds(
    messages.Beat,
    ranks,
    sequences,
    sequences,
    sequences,
    sequences,
    texts,
    st.floats(0, 1e9, allow_nan=False),
    sequences,
    sequences,
)
any_message = st.one_of(
    hellos(),
    st.builds(messages.Tags, st.integers(0, 1000), st.lists(tags, max_size=5).map(tuple)),
    blocks(),
    st.builds(messages.Heartbeat, st.lists(beats, max_size=4).map(tuple)),
    st.builds(messages.Goodbye, ranks, sequences, sequences, texts),
    st.builds(messages.Pulse, arrays.arrays(np.int64, st.tuples(st.integers(0, 4), st.just(5)))),
    st.just(messages.Unknown()),
    st.builds(messages.Refused, ranks, sequences, texts),
)


def same(a, b):
    return type(a) is type(b) and all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f") if isinstance(x, np.ndarray) else x == y
        for x, y in zip(a, b, strict=True)
    )


@given(any_message)
def test_what_one_end_encodes_the_other_decodes(message):
    assert same(wire.decode(wire.encode(message)), message)


def block(**changed):
    fields = {
        "step": 3,
        "rows": np.array([[1, 5, 9]], "<i8").tobytes(),
        "wall_times": np.ones(1).tobytes(),
        "tag_ids": np.array([0, 2], "<u4").tobytes(),
        "columns": np.zeros((7, 1, 2)).tobytes(),
    } | changed
    return [2, *fields.values()]


def columns(index, value):
    array = np.ones((7, 1, 2))
    array[index, 0, 1] = value
    return array.tobytes()


def beat(**changed):
    fields = {
        "rank": 1, "incarnation": 2, "oldest": 1, "sequence": 4, "step": 9, "phase": "", "seconds": 0.5, "dropped": 0,
        "unwritten": 0,
    }  # fmt: skip
    return [3, [list((fields | changed).values())]]


def hello(**changed):
    fields = {
        "version": wire.VERSION, "run": "r", "rank": 0, "incarnation": 1, "world_size": 2, "machine": "h", "pid": 3,
        "coordinates": {},
    }  # fmt: skip
    return [0, *(fields | changed).values()]


def tag(*fields):
    return [1, 0, [fields]]


VALID = [
    block(),
    beat(),
    hello(),
    tag("loss", "local", "", "x"),
    [4, 1, 2, 3, ""],
    [5, b""],
    [6],
    [7, 1, 2, "no"],
]
HOSTILE = {
    "nothing": b"",
    "not msgpack": b"\xc1",
    "truncated": msgpack.packb(block())[:-3],
    "trailing": msgpack.packb([6]) + b"\x00",
    "array that claims 4 G entries": b"\xdd\xff\xff\xff\xff",
    "map that claims 4 G entries": b"\xdf\xff\xff\xff\xff",
    "binary that claims 4 GB": b"\xc6\xff\xff\xff\xff",
    "string that claims 4 GB": b"\xdb\xff\xff\xff\xff",
    "nesting without an end": b"\x91" * 100_000,
    "extension type": msgpack.packb([6, msgpack.ExtType(5, b"x" * 100)]),
    "time stamp": b"\x92\x06\xd6\xff\x00\x00\x00\x00",
    "invalid UTF-8": b"\x92\x07\xa2\xff\xfe",
    "not an array": {"a": 1},
    "empty array": [],
    "kind is text": ["2"],
    "kind is a truth value": [True],
    "kind is an array": [[2]],
    "kind is a map": [{"a": 1}],
    "kind is unknown": [8],
    "kind is negative": [-1],
    "too few fields": [2, 1],
    "too many fields": [6, 1],
    "map with number keys": [0, {1: 2}],
    "hello: other version": hello(version=99),
    "hello: version is an array": hello(version=[1]),
    "hello: version is a truth value": hello(version=True),
    "hello: rank beyond the world": hello(rank=2),
    "hello: negative rank": hello(rank=-1),
    "hello: pid beyond what a kernel takes": hello(pid=messages.PID_LIMIT + 1),
    "hello: rank is a float": hello(rank=0.0),
    "hello: world of nobody": hello(world_size=0),
    "hello: huge world": hello(world_size=messages.RANK_LIMIT + 1),
    "hello: huge pid": hello(pid=1 << 63),
    "hello: long run name": hello(run="x" * 513),
    "hello: run is binary": hello(run=b"r"),
    "hello: coordinates are an array": hello(coordinates=[]),
    "hello: too many coordinates": hello(coordinates={str(i): 0 for i in range(17)}),
    "hello: coordinate is text": hello(coordinates={"dp": "0"}),
    "hello: coordinate of binary name": hello(coordinates={b"dp": 0}),
    "tags: entries are a number": [1, 0, 5],
    "tags: too many": [1, messages.TAG_LIMIT, [["a", "local", "", ""]]],
    "tags: negative index": [1, -1, []],
    "tags: entry is text": [1, 0, ["abcd"]],
    "tags: entry is short": tag("a", "local", ""),
    "tags: empty name": tag("", "local", "", ""),
    "tags: name with a line break": tag("a\nb", "local", "", ""),
    "tags: name with a zero": tag("a\0", "local", "", ""),
    "tags: name is a number": tag(5, "local", "", ""),
    "tags: long name": tag("é" * 257, "local", "", ""),
    "tags: unknown kind": tag("a", "strange", "", ""),
    "tags: kind is an array": tag("a", [[]], "", ""),
    "tags: kind is a map": tag("a", {"a": 1}, "", ""),
    "tags: long unit": tag("a", "local", "x" * 65, ""),
    "tags: long description": tag("a", "local", "", "x" * 4097),
    "block: negative step": block(step=-1),
    "block: huge step": block(step=messages.STEP_LIMIT + 1),
    "block: step is NaN": block(step=float("nan")),
    "block: no row": block(rows=b"", wall_times=b"", columns=b""),
    "block: half a row": block(rows=b"\0" * 20),
    "block: rows are text": block(rows="x" * 24),
    "block: rows are an array": block(rows=[1, 5, 9]),
    "block: too many rows": block(rows=bytes(24 * (messages.ROW_LIMIT + 1))),
    "block: negative rank": block(rows=np.array([[-1, 5, 9]], "<i8").tobytes()),
    "block: huge rank": block(rows=np.array([[messages.RANK_LIMIT, 5, 9]], "<i8").tobytes()),
    "block: negative sequence": block(rows=np.array([[1, 5, -9]], "<i8").tobytes()),
    "block: two wall times": block(wall_times=np.ones(2).tobytes()),
    "block: wall time is NaN": block(wall_times=np.full(1, np.nan).tobytes()),
    "block: wall time is infinite": block(wall_times=np.full(1, np.inf).tobytes()),
    "block: no tag": block(tag_ids=b"", columns=b""),
    "block: half a tag id": block(tag_ids=b"\0\0\0"),
    "block: tag twice": block(tag_ids=np.array([2, 2], "<u4").tobytes()),
    "block: tags descend": block(tag_ids=np.array([2, 0], "<u4").tobytes()),
    "block: tag ids are a number": block(tag_ids=0),
    "block: columns missing": block(columns=np.zeros((6, 1, 2)).tobytes()),
    "block: columns too many": block(columns=np.zeros((7, 2, 2)).tobytes()),
    "block: columns are none": block(columns=None),
    "block: count is NaN": block(columns=columns(0, np.nan)),
    "block: count is negative": block(columns=columns(0, -1.0)),
    "block: count is infinite": block(columns=columns(1, np.inf)),
    "block: finite values without a mean": block(columns=columns(2, np.nan)),
    "block: infinite maximum of finite values": block(columns=columns(5, np.inf)),
    "heartbeat: entries are a map": [3, {}],
    "heartbeat: too many": [3, [0] * (messages.ROW_LIMIT + 1)],
    "heartbeat: short": [3, [[1, 2]]],
    "heartbeat: NaN seconds": beat(seconds=float("nan")),
    "heartbeat: infinite seconds": beat(seconds=float("inf")),
    "heartbeat: whole seconds": beat(seconds=1),
    "heartbeat: negative step": beat(step=-1),
    "heartbeat: negative losses": beat(dropped=-1),
    "heartbeat: losses in words": beat(unwritten="none"),
    "heartbeat: phase is binary": beat(phase=b"x"),
    "heartbeat: long phase": beat(phase="x" * 513),
    "heartbeat: rank is a truth value": beat(rank=True),
    "goodbye: rank is text": [4, "1", 2, 3, ""],
    "goodbye: long reason": [4, 1, 2, 3, "x" * 4097],
    "pulse: half a row": [5, b"\0" * 8],
    "pulse: text": [5, "x"],
    "refused: number": [7, 1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_not_a_valid_message_is_refused(payload):
    data = payload if isinstance(payload, bytes) else msgpack.packb(payload)
    with pytest.raises(WireError):
        wire.decode(data)


def test_a_message_beyond_the_size_limit_is_refused(monkeypatch):
    monkeypatch.setattr(wire, "MESSAGE_LIMIT_BYTES", 10)
    with pytest.raises(WireError, match="at most 10"):
        wire.decode(msgpack.packb([7, 1, 2, "x" * 20]))


@pytest.mark.parametrize("payload", VALID)
def test_the_messages_that_the_hostile_ones_were_made_from_are_valid(payload):
    wire.decode(msgpack.packb(payload))


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_wire_error(data):
    accepted(data)


@settings(max_examples=150)
@given(any_message, st.randoms(use_true_random=False))
def test_a_damaged_message_is_refused_or_still_a_valid_message(message, chance):
    data = bytearray(wire.encode(message))
    for _ in range(chance.randint(1, 4)):
        if not data:
            break
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 5))
            case _:
                data[at] = chance.randrange(256)
    accepted(bytes(data))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats()
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=30,
    ),
    st.integers(0, 8),
)
def test_any_structure_is_refused_or_a_valid_message(structure, kind):
    fields = structure if isinstance(structure, list) else [structure]
    accepted(msgpack.packb([kind, *fields]))


def accepted(data):
    """Decode, and encode again what was accepted."""
    try:
        message = wire.decode(data)
    except WireError:
        return
    assert same(wire.decode(wire.encode(message)), message)
