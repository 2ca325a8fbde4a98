"""Frames the records of TensorBoard's event files (the TFRecord format), and reads them back.

    record   uint64 length | uint32 masked CRC of those 8 bytes | length bytes | uint32 masked CRC of them

All little-endian. A CRC is CRC-32C (Castagnoli); masked is rotated right by 15 bits, plus 0xA282EAD8.

Both checksums of every record are checked. A record that the end of the file cuts short, as a killed or
still running writer leaves it, ends the reading without an error; `RecordReader.offset` then tells where the
last whole record ends, and iterating again goes on from there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import google_crc32c

from rankside.errors import CrossrankError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
HEADER_BYTES = _LENGTH.size + _CRC.size
FOOTER_BYTES = _CRC.size
_READ_BYTES = 8 << 20
_KNOWN_HEADERS = 4096


class EventFileError(CrossrankError):
    """An event file holds what no writer of such files writes; the message names the file and the offset."""


def length_at(data: bytes | bytearray, offset: int) -> int:
    """Return the length of the data of the record that begins at the offset."""
    length: int = _LENGTH.unpack_from(data, offset)[0]
    return length


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of the data."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def header(length: int) -> bytes:
    """Return the 12 bytes that stand in front of a record's data."""
    packed = _LENGTH.pack(length)
    return packed + _CRC.pack(masked_crc(packed))


def footer(data: bytes) -> bytes:
    """Return the 4 bytes that stand behind a record's data."""
    return _CRC.pack(masked_crc(data))


class RecordReader:
    """Reads one file record by record, in file order.

    path: the file. offset: where to begin, in bytes; it must be the start of a record. Afterwards `offset` is
    the end of the last whole record that was handed out.

    Raises `EventFileError` at a damaged record, after everything in front of it was handed out, and OSError
    where the file cannot be read.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self._path = path
        self.offset = offset

    def __iter__(self) -> Iterator[bytes]:
        for data, spans in self.batches():
            for start, end in spans:
                yield data[start:end]

    def batches(self) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
        """Yield pieces of the file with the (start, end) of the data of each whole record in the piece."""
        known: dict[bytes, int] = {}
        with self._path.open("rb") as file:
            file.seek(self.offset)
            pending = b""
            read_bytes = _READ_BYTES
            while chunk := file.read(read_bytes):
                pending += chunk
                begin = self.offset
                spans, used, damage = self._split(pending, known)
                if spans:
                    yield pending, spans
                self.offset = begin + used
                if damage:
                    raise EventFileError(f"{self._path}: {damage} of the record at offset {self.offset}")
                pending = pending[used:]
                # A record that is longer than a piece must not be copied once for each piece of it.
                read_bytes = max(_READ_BYTES, len(pending))

    @staticmethod
    def _split(data: bytes, known: dict[bytes, int]) -> tuple[list[tuple[int, int]], int, str]:
        """Return the spans of the whole records, how many bytes they take, and what is wrong behind them."""
        spans: list[tuple[int, int]] = []
        position = 0
        last = len(data) - HEADER_BYTES - FOOTER_BYTES
        crc32c, crc_at = google_crc32c.value, _CRC.unpack_from
        while position <= last:
            head = data[position : position + HEADER_BYTES]
            # Records of equal length have equal headers: most need no second checksum.
            length = known.get(head)
            if length is None:
                length = length_at(head, 0)
                if head != header(length):
                    return spans, position, "wrong checksum in the length"
                if len(known) < _KNOWN_HEADERS:
                    known[head] = length
            start = position + HEADER_BYTES
            end = start + length
            if end + FOOTER_BYTES > len(data):
                break
            crc = crc32c(data[start:end])
            if (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF != crc_at(data, end)[0]:
                return spans, position, "wrong checksum in the data"
            spans.append((start, end))
            position = end + FOOTER_BYTES
        return spans, position, ""
