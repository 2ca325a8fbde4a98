"""Reads the event files of a run: its reports as they were written, or its scalars as TensorBoard shows them.

Files are those with `tfevents` in the name, in the order of their names, as TensorBoard reads them. A record
cut short at the end of a file ends that file without an error. Files of TensorBoard, TensorFlow, PyTorch and
tensorboardX are read like our own.

Raises `EventFileError` at a damaged record, after everything in front of it was handed out. With `on_damage`,
that function gets the error instead, and reading goes on with the next file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankside.record import HEADER_BYTES, EventFileError, RecordReader
from rankside.summary_layout import Layout, fields, varint_at
from rankside.window import single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]
    OnDamage = Callable[[EventFileError], object]

    # Wall time, step, start and end of the summary, session start; plain, as there is one for each event.
    _Event = tuple[float, int, int, int, bool]

_WALL_TIME = struct.Struct("<d")
_SESSION_START = 1
_NEGATIVE = 1 << 63
_LONELY_LAYOUTS = 8


class Report(NamedTuple):
    """What one event says.

    tags: T names. columns: shape (7, T), float64, ordered as `Column`.
    session_start: training began anew at this step; such an event has no tags. wall_time: seconds since 1970.
    """

    step: int
    tags: tuple[str, ...]
    columns: Float64Array
    session_start: bool
    wall_time: float


class Series(NamedTuple):
    """The points of one tag: steps, shape (N,), int64, strictly ascending; values, shape (N,), float64."""

    steps: Int64Array
    values: Float64Array


class _Rows(NamedTuple):
    """N events with the same layout; `at` is their place among the events of their piece of the file."""

    layout: Layout
    at: npt.NDArray[np.intp]
    steps: Int64Array
    wall_times: Float64Array
    summaries: npt.NDArray[np.uint8]


def event_files(folder: Path) -> list[Path]:
    """Return the event files of the folder, in the order in which TensorBoard reads them."""
    return sorted(path for path in folder.iterdir() if "tfevents" in path.name and path.is_file())


def read_reports(folder: Path, *, on_damage: OnDamage | None = None) -> Iterator[Report]:
    """Yield a report for each event with scalars, and each session start, in file order; nothing is dropped.

    An event with a window yields the window's columns; its scalars only draw them. Any other event yields its
    scalars as windows of one value.
    """
    for events, grouped in _pieces(folder, on_damage):
        reports: list[Report | None] = [None] * len(events)
        for rows in grouped:
            if rows.layout.window_tags is not None:
                tags, columns = rows.layout.window_tags, rows.layout.windows(rows.summaries)
            else:
                tags, columns = rows.layout.tags, single(rows.layout.values(rows.summaries))
            if tags:
                cells = zip(rows.at.tolist(), rows.steps.tolist(), rows.wall_times.tolist(), strict=True)
                for i, (at, step, wall_time) in enumerate(cells):
                    reports[at] = Report(step, tags, columns[:, i], session_start=False, wall_time=wall_time)
        for at, (wall_time, step, _, _, session_start) in enumerate(events):
            if session_start:
                reports[at] = Report(step, (), single(np.empty(0)), session_start=True, wall_time=wall_time)
        yield from (report for report in reports if report is not None)


def read_scalars(folder: Path, *, on_damage: OnDamage | None = None) -> dict[str, Series]:
    """Return the scalars of the folder by tag, as TensorBoard shows them after restarts.

    A point goes when a later point of its tag has the same step or a smaller one, as in TensorBoard's data
    server, and when a later session start has, as in its Python loader for files of version 2.
    """
    parts: dict[str, list[tuple[npt.NDArray[np.intp], Int64Array, Float64Array]]] = {}
    session_starts: list[tuple[int, int]] = []
    seen = 0
    for events, grouped in _pieces(folder, on_damage):
        session_starts += [(seen + at, event[1]) for at, event in enumerate(events) if event[4]]
        for rows in grouped:
            values = rows.layout.values(rows.summaries).T
            for tag, of_tag in zip(rows.layout.tags, values, strict=True):
                parts.setdefault(tag, []).append((rows.at + seen, rows.steps, of_tag))
        seen += len(events)
    return {tag: _surviving(of_tag, session_starts) for tag, of_tag in parts.items()}


def _surviving(
    parts: Sequence[tuple[npt.NDArray[np.intp], Int64Array, Float64Array]],
    session_starts: Sequence[tuple[int, int]],
) -> Series:
    at, steps, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(at, kind="stable")
    at, steps, values = at[order], steps[order], values[order]
    kept = np.ones(len(steps), np.bool_)
    smallest_from_here = np.minimum.accumulate(steps[::-1])[::-1]
    kept[:-1] = steps[:-1] < smallest_from_here[1:]
    for start_at, step in session_starts:
        kept &= (at > start_at) | (steps < step)
    return Series(steps[kept], values[kept])


def _pieces(folder: Path, on_damage: OnDamage | None) -> Iterator[tuple[list[_Event], list[_Rows]]]:
    """Yield the events of each piece of each file, and those with a summary once more, by layout."""
    foreign: set[str] = set()
    for path in event_files(folder):
        reader = RecordReader(path)
        try:
            for data, spans in reader.batches():
                events, rows, damage = _decode(data, spans, foreign)
                yield events, rows
                if damage:
                    raise _no_event(path, reader.offset + spans[len(events)][0] - HEADER_BYTES, damage)
        except EventFileError as error:
            if on_damage is None:
                raise
            on_damage(error)


def _no_event(path: Path, offset: int, damage: str) -> EventFileError:
    return EventFileError(f"{path}: no event in the record at offset {offset}: {damage}")


def _decode(
    data: bytes, spans: Sequence[tuple[int, int]], foreign: set[str]
) -> tuple[list[_Event], list[_Rows], str]:
    """Return the events in front of the first one that is not an event, and what is wrong with that one."""
    events: list[_Event] = []
    damage = ""
    try:
        for start, end in spans:
            events.append(_event(data, start, end))
    except ValueError as error:
        damage = str(error)
    try:
        return events, _group(data, events, foreign), damage
    except _NoSummaryError as error:
        return *_decode(data, spans[: error.at], foreign)[:2], str(error)


def _event(data: bytes, start: int, end: int) -> _Event:
    """Parse one event; its summary is only located. Raises ValueError when it is no event."""
    # Almost every event is a wall time, a step and a summary of less than 16 KiB, in this order. The record's
    # footer, which is in `data` too, keeps the look ahead within bounds.
    position = start + 9
    if data[start] == 0x09 and position < end:
        step = 0
        if data[position] == 0x10:
            step, position = varint_at(data, position + 1, end)
        if data[position] == 0x2A and step < _NEGATIVE:
            length = data[position + 1]
            position += 2
            if length >= 0x80:
                length += (data[position] << 7) - 0x80
                position += 1
            if position + length == end:
                return _WALL_TIME.unpack_from(data, start + 1)[0], step, position, end, False
    return _unusual_event(data, start, end)


def _unusual_event(data: bytes, start: int, end: int) -> _Event:
    """Parse an event of any kind, with its fields in any order."""
    wall_time = 0.0
    step = 0
    summary = (start, start)
    session_start = False
    for number, wire_type, begin, stop in fields(data, start, end):
        if (number, wire_type) == (1, 1):
            wall_time = _WALL_TIME.unpack_from(data, begin)[0]
        elif (number, wire_type) == (2, 0):
            step = varint_at(data, begin, stop)[0]
        elif (number, wire_type) == (5, 2):
            summary = (begin, stop)
        elif (number, wire_type) == (7, 2):
            session_start = any(
                (inner, inner_type) == (1, 0) and varint_at(data, b, s)[0] == _SESSION_START
                for inner, inner_type, b, s in fields(data, begin, stop)
            )
    step -= 2 * _NEGATIVE if step >= _NEGATIVE else 0
    return wall_time, step, *summary, session_start


def _group(data: bytes, events: Sequence[_Event], foreign: set[str]) -> list[_Rows]:
    """Sort the events with a summary by layout. Raises `_NoSummaryError` for one whose summary is none."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for place, (_, _, start, end, _) in enumerate(events):
        if end > start:
            # Length and first tag nearly always tell layouts apart; where they do not, `_match` does.
            key = (end - start, data[start : start + 4 + data[start + 3]])
            groups.setdefault(key, []).append(place)
    steps = np.array([event[1] for event in events], np.int64)
    wall_times = np.array([event[0] for event in events], np.float64)
    starts = np.array([event[2] for event in events], np.intp)
    everything = np.frombuffer(data, np.uint8)
    grouped: list[_Rows] = []
    for (length, _), members in groups.items():
        at = np.array(members)
        summaries = np.lib.stride_tricks.sliding_window_view(everything, length)[starts[at]]
        for layout, matching in _match(summaries, at, foreign):
            chosen = at[matching]
            grouped.append(_Rows(layout, chosen, steps[chosen], wall_times[chosen], summaries[matching]))
    return grouped


def _match(
    summaries: npt.NDArray[np.uint8], at: npt.NDArray[np.intp], foreign: set[str]
) -> Iterator[tuple[Layout, npt.NDArray[np.intp]]]:
    """Yield each layout among the summaries, shape (N, L), with the indices of those that have it."""
    remaining = np.arange(len(summaries))
    lonely = 0
    while len(remaining):
        first = remaining[0]
        try:
            layout = Layout(summaries[first].tobytes(), foreign)
        except ValueError as error:
            raise _NoSummaryError(int(at[first]), str(error)) from error
        # Where every summary has a layout of its own, comparing each with all others would take forever.
        if lonely < _LONELY_LAYOUTS and layout.variable.any():
            same = ((summaries[remaining] == summaries[first]) | layout.variable).all(axis=1)
        else:
            same = remaining == first
        matching = remaining[same]
        lonely += len(matching) == 1
        yield layout, matching
        remaining = remaining[~same]


class _NoSummaryError(ValueError):
    """The event `at` of a piece has a summary that cannot be parsed."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
