"""Finds where the numbers stand in a serialized summary, so that equal summaries are read without parsing.

A run writes the same summary again and again, in which only the numbers change. One of them is parsed by hand
into a `Layout`; whatever has the same bytes everywhere else is then read with numpy, thousands at a time.

Scalars are `simple_value`s, and tensors of one element (float, double or half) of no plugin but `scalars`, as
TensorFlow 2 writes them. Of values with the same tag in one summary the last one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankside.summary import WINDOW_PLUGIN, WINDOW_TAG, DataType
from rankside.window import N_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]

_FIXED_BYTES = {1: 8, 5: 4}  # by wire type


class _Slot(NamedTuple):
    """Where a number stands, or, with an empty dtype, the number itself."""

    offset: int
    dtype: str
    number: float = 0.0


class Layout:
    """What one summary holds, and where.

    tags: names of its scalars. window_tags: names of a window's tags, or None where it holds no window.
    variable: shape (L,), bool, where numbers stand among its L bytes.
    """

    def __init__(self, summary: bytes, foreign: set[str]) -> None:
        """Parse the summary; tags of other plugins than `scalars` are read from and added to `foreign`.

        Raises ValueError when the bytes are no summary.
        """
        self._slots: dict[str, _Slot] = {}
        self._window = (0, 0)
        self.window_tags: tuple[str, ...] | None = None
        for number, wire_type, start, end in fields(summary, 0, len(summary)):
            if (number, wire_type) == (1, 2):
                self._add_value(summary, start, end, foreign)
        self.tags = tuple(self._slots)
        self.variable = np.zeros(len(summary), np.bool_)
        for slot in self._slots.values():
            if slot.dtype:
                self.variable[slot.offset : slot.offset + np.dtype(slot.dtype).itemsize] = True
        self.variable[slice(*self._window)] = True

    def values(self, rows: npt.NDArray[np.uint8]) -> Float64Array:
        """Return the scalars, shape (N, T), of N summaries of this layout, shape (N, L)."""
        values = np.empty((len(rows), len(self._slots)))
        numbers = tuple(self._slots.values())
        for dtype in {slot.dtype for slot in numbers}:
            at = [i for i, slot in enumerate(numbers) if slot.dtype == dtype]
            if dtype:
                offsets = np.array([numbers[i].offset for i in at])
                bytes_at = offsets[:, None] + np.arange(np.dtype(dtype).itemsize)
                values[:, at] = np.ascontiguousarray(rows[:, bytes_at]).view(dtype)[..., 0]
            else:
                values[:, at] = [numbers[i].number for i in at]
        return values

    def windows(self, rows: npt.NDArray[np.uint8]) -> Float64Array:
        """Return the columns of the windows, shape (7, N, T), of N summaries of this layout, shape (N, L)."""
        content = np.ascontiguousarray(rows[:, slice(*self._window)]).view("<f8")
        return np.moveaxis(content.reshape(len(rows), N_COLUMNS, -1), 1, 0)

    def _add_value(self, summary: bytes, start: int, end: int, foreign: set[str]) -> None:
        """Add the scalar or the window of one Value, if it holds one."""
        found = {(number, kind): (begin, stop) for number, kind, begin, stop in fields(summary, start, end)}
        nothing = (start, start)
        begin, stop = found.get((1, 2), nothing)
        tag = summary[begin:stop].decode()
        plugin, content = _plugin(summary, *found.get((9, 2), nothing))
        if plugin not in {"", "scalars"}:
            foreign.add(tag)
        if (2, 5) in found:
            self._slots[tag] = _Slot(found[2, 5][0], "<f4")
        elif (8, 2) in found:
            tensor = _Tensor(summary, *found[8, 2])
            if (tag, plugin) == (WINDOW_TAG, WINDOW_PLUGIN):
                self._set_window(tensor, tuple(content.decode().split("\n")))
            elif tag not in foreign and (slot := tensor.scalar()):
                self._slots[tag] = slot

    def _set_window(self, tensor: _Tensor, tags: tuple[str, ...]) -> None:
        begin, stop = tensor.content
        if tensor.dtype != DataType.DOUBLE or stop - begin != N_COLUMNS * 8 * len(tags):
            raise ValueError(f"a window of {len(tags)} tags has {stop - begin} bytes")
        self._window = tensor.content
        self.window_tags = tags


class _Tensor:
    """A TensorProto, as far as a scalar or a window needs it."""

    def __init__(self, summary: bytes, start: int, end: int) -> None:
        self.dtype = 0
        self.content = (0, 0)
        self._summary = summary
        self._size = 1
        self._values: dict[int, tuple[int, int]] = {}
        for number, wire_type, begin, stop in fields(summary, start, end):
            if (number, wire_type) == (1, 0):
                self.dtype = varint_at(summary, begin, stop)[0]
            elif (number, wire_type) == (2, 2):
                self._size = _element_count(summary, begin, stop)
            elif (number, wire_type) == (4, 2):
                self.content = (begin, stop)
            else:
                self._values[number] = (begin, stop)

    def scalar(self) -> _Slot | None:
        """Return where its only element stands; None where it is not a number, or not one."""
        if self._size != 1:
            return None
        if self.dtype == DataType.FLOAT:
            return self._fixed("<f4", 5)
        if self.dtype == DataType.DOUBLE:
            return self._fixed("<f8", 6)
        if self.dtype == DataType.HALF:
            begin, stop = self.content
            half = self._summary[begin:stop]
            if 13 in self._values:
                half = varint_at(self._summary, *self._values[13])[0].to_bytes(8, "little")[:2]
            return _Slot(0, "", float(np.frombuffer(half, "<f2")[0])) if len(half) == 2 else None
        return None

    def _fixed(self, dtype: str, number: int) -> _Slot | None:
        for begin, stop in (self._values.get(number, (0, 0)), self.content):
            if stop - begin == np.dtype(dtype).itemsize:
                return _Slot(begin, dtype)
        return None


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, start, end) of the content of each field of a protobuf message.

    Raises ValueError where the message ends within a field, or has a wire type that is no longer in use.
    """
    position = start
    while position < end:
        key, position = varint_at(data, position, end)
        wire_type = key & 7
        begin = position
        if wire_type == 0:
            _, position = varint_at(data, position, end)
        elif wire_type == 2:
            length, begin = varint_at(data, position, end)
            position = begin + length
        elif wire_type in _FIXED_BYTES:
            position += _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} in a message")
        if position > end:
            raise ValueError("a message ends within a field")
        yield key >> 3, wire_type, begin, position


def varint_at(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the unsigned number that begins at the position, and where it ends."""
    number = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
    raise ValueError("a message ends within a number")


def _element_count(data: bytes, start: int, end: int) -> int:
    """Return the number of elements of a TensorShapeProto."""
    count = 1
    for number, wire_type, begin, stop in fields(data, start, end):
        if (number, wire_type) == (2, 2):
            sizes = [varint_at(data, b, s)[0] for n, w, b, s in fields(data, begin, stop) if (n, w) == (1, 0)]
            count *= sizes[-1] if sizes else 0
    return count


def _plugin(data: bytes, start: int, end: int) -> tuple[str, bytes]:
    """Return the plugin name and content of a SummaryMetadata."""
    name, content = "", b""
    for number, wire_type, begin, stop in fields(data, start, end):
        if (number, wire_type) == (1, 2):
            for inner, inner_type, b, s in fields(data, begin, stop):
                if (inner, inner_type) == (1, 2):
                    name = data[b:s].decode()
                elif (inner, inner_type) == (2, 2):
                    content = data[b:s]
    return name, content
