"""Serializes the values of a TensorBoard summary by hand: writing needs no protobuf runtime.

    Value           1 tag | 2 simple_value (fixed32) | 8 tensor: TensorProto | 9 metadata: SummaryMetadata
    SummaryMetadata 1 plugin_data {1 plugin_name | 2 content} | 3 summary_description | 4 data_class
    TensorProto     1 dtype | 2 tensor_shape {2 dim {1 size}} | 4 tensor_content | 8 string_val

Each function returns one serialized `Value`, for `EventFileWriter.write_summary`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

WINDOW_TAG = "crossrank/window"
WINDOW_PLUGIN = "crossrank"

_FLOAT = struct.Struct("<f")


class DataClass(IntEnum):
    """How TensorBoard stores a time series; without one, its data server drops a scalar's description."""

    UNKNOWN = 0
    SCALAR = 1
    TENSOR = 2


class DataType(IntEnum):
    """The element types of a tensor that are written here or read back."""

    FLOAT = 1
    DOUBLE = 2
    STRING = 7
    HALF = 19


def varint(number: int) -> bytes:
    """Return the base-128 encoding of an int64 or uint64."""
    number &= 0xFFFFFFFFFFFFFFFF
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field: a string, bytes or a nested message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def metadata(
    plugin_name: str,
    *,
    description: str = "",
    content: bytes = b"",
    data_class: DataClass = DataClass.UNKNOWN,
) -> bytes:
    """Return a serialized SummaryMetadata; description is Markdown."""
    plugin = field(1, plugin_name.encode()) + (field(2, content) if content else b"")
    encoded = field(1, plugin)
    if description:
        encoded += field(3, description.encode())
    if data_class:
        encoded += b"\x20" + varint(data_class)
    return encoded


def scalar_value(tag: str, value: float, *, description: str | None = None) -> bytes:
    """Return a scalar, rounded to float32; what float32 cannot hold becomes infinite.

    description: None leaves the metadata out, as for all but a tag's first value in a file.
    """
    encoded = field(1, tag.encode())
    if description is not None:
        about = metadata("scalars", description=description, data_class=DataClass.SCALAR)
        encoded += field(9, about)
    with np.errstate(over="ignore"):
        return encoded + b"\x15" + _FLOAT.pack(np.float32(value))


def tensor_value(
    tag: str,
    array: npt.ArrayLike,
    plugin_name: str,
    *,
    description: str = "",
    content: bytes = b"",
) -> bytes:
    """Return a tensor of any shape: float32 stays what it is, everything else becomes float64.

    content: bytes for the plugin of that name, not looked at by TensorBoard.
    """
    tensor = np.asarray(array)
    dtype = DataType.FLOAT if tensor.dtype == np.float32 else DataType.DOUBLE
    packed = tensor.astype("<f4" if dtype is DataType.FLOAT else "<f8", copy=False).tobytes()
    encoded = b"\x08" + varint(dtype) + field(2, _shape(*tensor.shape)) + field(4, packed)
    about = metadata(plugin_name, description=description, content=content, data_class=DataClass.TENSOR)
    return field(1, tag.encode()) + field(8, encoded) + field(9, about)


def text_value(tag: str, markdown: str, *, description: str = "") -> bytes:
    """Return one piece of Markdown for TensorBoard's text page."""
    encoded = b"\x08" + varint(DataType.STRING) + field(2, b"") + field(8, markdown.encode())
    about = metadata("text", description=description, data_class=DataClass.TENSOR)
    return field(1, tag.encode()) + field(8, encoded) + field(9, about)


def histogram_value(tag: str, edges: npt.ArrayLike, counts: npt.ArrayLike, *, description: str = "") -> bytes:
    """Return a histogram.

    edges: shape (K + 1,), ascending; counts: shape (K,). Raises ValueError on other shapes.
    """
    bounds = np.asarray(edges, np.float64)
    weights = np.asarray(counts, np.float64)
    if bounds.shape != (weights.size + 1,) or weights.ndim != 1:
        raise ValueError(f"{tag}: {weights.shape} counts need one edge more, found {bounds.shape}")
    buckets = np.column_stack((bounds[:-1], bounds[1:], weights))
    return tensor_value(tag, buckets, "histograms", description=description)


def window_value(tags: tuple[str, ...], columns: npt.NDArray[np.float64]) -> bytes:
    """Return a window's statistics, shape (7, T), float64, which TensorBoard itself does not show.

    The plugin content is the T tag names in UTF-8, joined by newlines.
    """
    return tensor_value(WINDOW_TAG, columns, WINDOW_PLUGIN, content="\n".join(tags).encode())


def _shape(*sizes: int) -> bytes:
    """Return a serialized TensorShapeProto."""
    return b"".join(field(2, b"\x08" + varint(size)) for size in sizes)
