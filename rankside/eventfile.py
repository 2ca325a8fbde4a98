"""Appends to TensorBoard's event files.

    file     records (record.py), each the serialized message
    Event    1 wall_time (double) | 2 step (int64) and one of
             3 file_version | 4 graph_def | 5 summary {1 Value, repeated} | 7 session_log {1 status}

The first event of a file says `brain.Event:2`. Values are drawn in summary.py. All scalars of a step stand in
one event, as float32, whose bytes are a template of the tags in which only the numbers change.

Writing only appends to a buffer in memory, which goes to the file at `flush`, or when it has grown by
`FLUSH_BYTES`. A killed process loses what was not flushed. When the disk refuses, the buffer waits for it;
once it is full, new events are dropped and counted in `lost_events`. Records go out in order: what the disk
took of a record is completed by the next flush that works. A writer belongs to one thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import time
from array import array
from typing import TYPE_CHECKING

import numpy as np

from rankside.record import FOOTER_BYTES, HEADER_BYTES, footer, header, length_at
from rankside.scalar_template import ScalarTemplate
from rankside.summary import field, scalar_value, varint, window_value
from rankside.window import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rankside.tags import Tag

    Float32Array = npt.NDArray[np.float32]
    Float64Array = npt.NDArray[np.float64]

FILE_PREFIX = "events.out.tfevents."
FLUSH_BYTES = 1 << 20
_FILE_VERSION = b"brain.Event:2"
_SESSION_START = b"\x08\x01"
_START = re.compile(re.escape(FILE_PREFIX) + r"(\d{10})(?!\d)")
_WALL_TIME = struct.Struct("<cd")
_CACHED = 1024


class EventFileWriter:
    """Appends to the event files of one folder, which it creates; it never touches a file that was there.

    max_bytes: a file that has reached this size is followed by a new one. wall_clock: seconds since 1970.
    suffix: ends the file name. max_buffered_bytes: how much waits in memory while the disk refuses; one event
    is taken whatever its size.

    Files are named `events.out.tfevents.<start>.<host>.<pid>.<suffix>`. The start is the wall clock's second,
    or one more than the newest in the folder, whichever is later: TensorBoard, which reads files in the order
    of their names, reads them in the order in which they were begun, whatever the clock did. The first file
    is created with the first flush that has something to write.

    incarnation: the start of the first file, fixed at construction; it grows from one start of a rank to the
    next. continues: whether the folder held event files before. failed_writes: flushes that the disk refused.
    lost_events: events dropped because of that.

    Raises OSError when the folder cannot be created or listed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 256 << 20,
        wall_clock: Callable[[], float] = time.time,
        suffix: str = "crossrank",
        max_buffered_bytes: int = 16 << 20,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._wall_clock = wall_clock
        self._suffix = suffix
        self._max_buffered_bytes = max_buffered_bytes
        self._buffer = bytearray()  # whole records, of which the file has the first `_written` bytes
        self._written = 0
        self._flush_at = FLUSH_BYTES
        self._descriptor = -1
        self._file_bytes = 0  # where the buffer's first record stands in the file
        self._file_number = 0
        self._versioned = False
        self._described: set[str] = set()
        self._templates: dict[tuple[str, ...], ScalarTemplate] = {}
        self._newest: tuple[Sequence[Tag] | None, ScalarTemplate | None] = (None, None)
        self._headers: dict[int, bytes] = {}
        self.failed_writes = 0
        self.lost_events = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.incarnation = self._next_start()
        self.continues = any(folder.glob(f"{FILE_PREFIX}*"))

    def write_scalars(
        self,
        step: int,
        tags: Sequence[Tag],
        values: Float64Array | Float32Array | Sequence[float],
        *,
        wall_time: float | None = None,
    ) -> None:
        """Write one event with a value for each tag, at `wall_time` (now, unless given).

        values: shape (T,), rounded to float32; NaN and infinities are written as they are, and what float32
        cannot hold becomes infinite. The first value of a tag in a file carries the tag's description.
        Raises ValueError when there are not as many values as tags.
        """
        self._write_values(step, tags, values, wall_time)

    def write_window(
        self, step: int, tags: Sequence[Tag], columns: Float64Array, *, wall_time: float | None = None
    ) -> None:
        """Write one event with the statistics of a window, shape (7, T), float64, ordered as `Column`.

        Where no tag stands for more than one value, this writes the values and no more. Otherwise the event
        holds the mean under the tag itself (the last value where none was finite), `<tag>/min`, `<tag>/max`,
        and the columns in full precision, which `eventreader.read_reports` gives back. Tags that report
        nothing are left out.
        """
        reported = columns[Column.COUNT] + columns[Column.NONFINITE]
        if not reported.all():
            kept = np.flatnonzero(reported)
            tags, columns, reported = tuple(tags[i] for i in kept), columns[:, kept], reported[kept]
        if not tags:
            return
        if (reported == 1).all():
            self._write_values(step, tags, columns[Column.LAST], wall_time)
            return
        means = np.where(columns[Column.COUNT] > 0, columns[Column.MEAN], columns[Column.LAST])
        values = np.concatenate((means, columns[Column.MIN], columns[Column.MAX]))
        tensor = window_value(tuple(tag.name for tag in tags), columns)
        self._write_values(step, self._template(tags).window_tags, values, wall_time, extra=field(1, tensor))

    def write_summary(self, step: int, values: Iterable[bytes]) -> None:
        """Write one event with the serialized `Summary.Value` messages, as summary.py makes them."""
        self._append(self._event(step, field(5, b"".join(field(1, value) for value in values))))

    def write_session_start(self, step: int) -> None:
        """Say that training begins anew at this step: TensorBoard drops what it has from this step on.

        It is said twice, since TensorBoard takes the first session start of a run for its beginning, and drops
        nothing then. TensorBoard's fast data server passes over it: it drops what a tag has from a step on when the
        tag comes again at that step.
        """
        for _ in range(2):
            self._append(self._event(step, field(7, _SESSION_START)))

    def write_event_bytes(self, event: bytes) -> None:
        """Write a serialized `Event` as it is."""
        self._append(event)

    def flush(self) -> None:
        """Hand everything that is buffered to the operating system.

        Raises OSError when it does not take all of it; what it did not take stays buffered, and the writer
        stays usable.
        """
        if not self._buffer:
            return
        try:
            if self._descriptor < 0:
                self._descriptor = self._create()
            with memoryview(self._buffer) as view:
                while self._written < len(view):
                    self._written += os.write(self._descriptor, view[self._written :])
        except OSError:
            self.failed_writes += 1
            raise
        finally:
            self._drop_written()
            self._flush_at = len(self._buffer) + FLUSH_BYTES
        if self._file_bytes >= self._max_bytes:
            self._end_file()

    def close(self) -> None:
        """Flush and close the file; a later event begins a new file.

        Raises OSError when the last flush fails. Its events are then lost and counted, and the file is cut
        behind the last whole one.
        """
        try:
            self.flush()
        except OSError:
            self.lost_events += self._count_buffered()
            if self._descriptor >= 0 and self._written:
                os.ftruncate(self._descriptor, self._file_bytes)
            raise
        finally:
            self._buffer.clear()
            self._written = 0
            self._end_file()

    def _write_values(
        self,
        step: int,
        tags: Sequence[Tag],
        values: Float64Array | Float32Array | Sequence[float],
        wall_time: float | None,
        *,
        extra: bytes = b"",
    ) -> None:
        # numpy's cast would warn where float32 overflows, and silencing it costs half of the whole call.
        numbers = array("f", values.tolist() if isinstance(values, np.ndarray) else values)
        if len(numbers) != len(tags):
            raise ValueError(f"step {step}: {len(tags)} tags, but {len(numbers)} values")
        template = self._template(tags)
        if template.described_in == self._file_number:
            self._append(self._event(step, field(5, template.fill(numbers) + extra), wall_time))
            return
        new = {tag.name for tag in tags} - self._described
        described = b"".join(
            field(1, scalar_value(tag.name, value, description=_describe(tag) if tag.name in new else None))
            for tag, value in zip(tags, numbers, strict=True)
        )
        if self._append(self._event(step, field(5, described + extra), wall_time)):
            self._described |= new
            template.described_in = self._file_number

    def _template(self, tags: Sequence[Tag]) -> ScalarTemplate:
        """Return the template of these tags; the same tuple as last time is known without looking at it."""
        known, template = self._newest
        if template is not None and known is tags:
            return template
        names = tuple(tag.name for tag in tags)
        template = self._templates.get(names)
        if template is None:
            if len(self._templates) >= _CACHED:
                self._templates.clear()
            template = self._templates[names] = ScalarTemplate(tags)
        self._newest = (tags if isinstance(tags, tuple) else None, template)
        return template

    def _event(self, step: int, content: bytes, wall_time: float | None = None) -> bytes:
        seconds = self._wall_clock() if wall_time is None else wall_time
        return b"%b\x10%b%b" % (_WALL_TIME.pack(b"\x09", seconds), varint(step), content)

    def _append(self, event: bytes) -> bool:
        """Buffer one event as a record; return whether there was room for it."""
        record = self._framed(event)
        if not self._versioned:
            version = _WALL_TIME.pack(b"\x09", self._wall_clock()) + field(3, _FILE_VERSION)
            record = self._framed(version) + record
        size = len(self._buffer) + len(record)
        if size > self._max_buffered_bytes and self._buffer:
            with contextlib.suppress(OSError):  # counted by flush
                self.flush()
            if self._buffer and len(self._buffer) + len(record) > self._max_buffered_bytes:
                self.lost_events += 1
                return False
        self._buffer += record
        self._versioned = True
        if len(self._buffer) >= self._flush_at:
            with contextlib.suppress(OSError):  # counted by flush
                self.flush()
        return True

    def _framed(self, event: bytes) -> bytes:
        head = self._headers.get(len(event))
        if head is None:
            if len(self._headers) >= _CACHED:
                self._headers.clear()
            head = self._headers[len(event)] = header(len(event))
        return b"%b%b%b" % (head, event, footer(event))

    def _drop_written(self) -> None:
        """Drop the records that the file has whole, so that the buffer again begins with a record."""
        end = 0
        if self._written == len(self._buffer):
            end = self._written
        else:
            while (following := self._record_end(end)) <= self._written:
                end = following
        del self._buffer[:end]
        self._file_bytes += end
        self._written -= end

    def _count_buffered(self) -> int:
        count = end = 0
        while end < len(self._buffer):
            end = self._record_end(end)
            count += 1
        return count

    def _record_end(self, start: int) -> int:
        return start + HEADER_BYTES + length_at(self._buffer, start) + FOOTER_BYTES

    def _end_file(self) -> None:
        """Close the file, if there is one; what is written next begins another."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._file_bytes = 0
        self._file_number += 1
        self._versioned = False
        self._described.clear()

    def _create(self) -> int:
        start = self.incarnation if self._file_number == 0 else self._next_start()
        while True:
            name = f"{FILE_PREFIX}{start:010d}.{socket.gethostname()}.{os.getpid()}.{self._suffix}"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                return os.open(self._folder / name, flags, 0o644)
            except FileExistsError:
                start += 1

    def _next_start(self) -> int:
        newest = max(map(start_of, self._folder.iterdir()), default=-1)
        return max(int(self._wall_clock()), newest + 1)


def start_of(path: Path) -> int:
    """Return the start in an event file's name; -1 where it is not named as TensorBoard names them."""
    match = _START.match(path.name)
    return int(match[1]) if match else -1


def with_start(name: str, start: int) -> str:
    """Return the name of an event file with another start in it."""
    return f"{FILE_PREFIX}{start:010d}{name[len(FILE_PREFIX) + 10 :]}"


def _describe(tag: Tag) -> str:
    return f"{tag.description} ({tag.unit})".strip() if tag.unit else tag.description
