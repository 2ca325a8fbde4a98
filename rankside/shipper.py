"""The one background thread of a rank: takes what was logged, writes the rank's event file, ships the reports.

Ordering: entries are taken in the order they were logged. A value is in the file before it is sent, at most
`flush_seconds` after it was logged, and at once when it is not finite. Nothing raises out of the thread: a
failure is counted, reported once and shown in `counters`; the file goes on without the connection and the
connection without the file. It lets go of the interpreter every half millisecond, so that training waits for no
batch; not after each entry, since what it needs next would no longer be in the processor's cache.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
from typing import TYPE_CHECKING

from rankside import embedded, keys, messages
from rankside.adviser import Adviser
from rankside.entries import (
    IN_A_CALLBACK,
    IN_A_LOOP,
    STARTING,
    Description,
    Entry,
    Phase,
    Session,
    Summaries,
    Values,
)
from rankside.errors import CrossrankError, TransportError
from rankside.eventfile import EventFileWriter
from rankside.gather import Gatherer, Report
from rankside.machine import machine_name
from rankside.resolver import Resolver
from rankside.schedule import Schedule
from rankside.slow_events import SlowEvents
from rankside.uplink import Uplink
from rankside.vanished import end_vanished
from rankside.window import Column

if TYPE_CHECKING:
    from collections import Counter, deque
    from collections.abc import Callable
    from pathlib import Path

    from rankside.config import RankConfig
    from rankside.tags import Tag

_LOGGER = logging.getLogger("crossrank")
_ROUND_SECONDS = 0.2  # how long entries gather; a round costs about the same for one as for many
_ANSWER_SECONDS = 0.05  # how long it listens for an answer before it asks again, when it leaves
_CALLBACK_SECONDS = 1.0  # how long the report of a step waits for the callbacks that come after the monitor
_TURN_SECONDS = 0.0005  # how long it keeps the interpreter at once
_COURTESY_SECONDS = 0.0001  # a real sleep, so that a training thread that waits for the interpreter gets it


class Shipper(threading.Thread):
    """The background thread of one rank."""

    def __init__(
        self,
        config: RankConfig,
        queue: deque[Entry],
        counters: Counter[str],
        *,
        wall_clock: Callable[[], float],
        location: embedded.Location | None = None,
    ) -> None:
        super().__init__(name="crossrank-shipper", daemon=True)
        self.location = location  # of an earlier start that failed, which this one continues
        self.phase = Phase(STARTING, time.monotonic())
        self._session_wanted = False
        self.flush_wanted = False
        self._config = config
        self._wall_clock = wall_clock
        self._queue = queue
        self._counters = counters
        schedule = Schedule(config.every)
        self._gatherer = Gatherer(schedule)
        self.adviser = Adviser(config.rank, schedule)
        self._writer: EventFileWriter | None = None
        self._uplink: Uplink | None = None
        self._run_dir: Path | None = None
        self._resolver = Resolver(self._fail)
        self._slow_events = SlowEvents()
        self._newest_tags: tuple[object, tuple[Tag, ...]] = (None, ())
        self._step = 0
        self._next_flush = 0.0
        self._stopping = threading.Event()
        self._deadline = 0.0
        self._half_time = 0.0
        self._reason = ""
        self._reported: set[str] = set()

    def stop(self, *, reason: str, timeout_seconds: float) -> None:
        """Finish everything logged so far, say goodbye, and end; waits at most about `timeout_seconds`."""
        self._reason = reason
        now = time.monotonic()
        self._deadline = now + timeout_seconds
        self._half_time = now + timeout_seconds / 2
        self._stopping.set()
        self.join(timeout_seconds + 1.0)
        if self.is_alive():
            self._fail(
                "finishing in time", TimeoutError(f"{len(self._queue)} logged entries may not be written")
            )

    def run(self) -> None:
        """Work until stopped."""
        try:
            self._open()
            while not self._stopping.is_set():
                busy = self._drain()
                self._pump()
                self._flush_when_due()
                if not busy and not self._make_slow_events():
                    self._stopping.wait(_ROUND_SECONDS)
            while self._drain():
                pass
            self._deliver(self._gatherer.finish())
            while self._make_slow_events():
                self._pump()
            self._tell_left()
            self._say_goodbye()
        except Exception as error:  # noqa: BLE001 (the edge: nothing raises into training)
            self._fail("background thread", error)
        finally:
            self._close()

    def _open(self) -> None:
        config = self._config
        location, continues = self.location, self.location is not None
        if location is None:
            try:
                location = embedded.locate(config, give_up=self._is_past_half_time)
            except (OSError, CrossrankError) as error:
                self._fail("finding the run", error)
                location = embedded.Location(embedded.unjoined_folder(config), None)
        self.location = location
        if location.trouble and not continues:
            self._fail("starting the aggregator", TransportError(location.trouble))
        if location.aggregator is not None and not continues:
            _LOGGER.warning(
                "recording to %s; open it with: crossrank tensorboard %s", *[location.run_dir] * 2
            )
        self._run_dir = location.run_dir
        self.adviser.folder = location.run_dir / f"rank_{config.rank}"
        incarnation = int(self._wall_clock())  # where there is no file to tell it by
        try:
            self._writer = EventFileWriter(
                self.adviser.folder, max_bytes=config.file_bytes, wall_clock=self._wall_clock
            )
            incarnation = self._writer.incarnation
        except OSError as error:
            self._fail("making the event file", error)
        if location.endpoint is not None:
            self._connect(location.endpoint, location.run_dir.name, incarnation)

    def _is_past_half_time(self) -> bool:
        """Whether the end has come so near that the rest of the time is for what is to be delivered."""
        return self._stopping.is_set() and time.monotonic() >= self._half_time

    def _connect(self, endpoint: str, run: str, incarnation: int) -> None:
        config = self._config
        hello = messages.Hello(
            run=run,
            rank=config.rank,
            incarnation=incarnation,
            world_size=config.world_size,
            machine=machine_name(),
            pid=os.getpid(),
            coordinates=config.coordinates,
        )
        try:
            self._uplink = Uplink(
                endpoint,
                hello,
                self._gatherer.tags,
                buffer_bytes=config.buffer_bytes,
                heartbeat_seconds=config.heartbeat_seconds,
                keys=keys.load(config.key) if config.key is not None else None,
                insecure=config.insecure,
            )
        except Exception as error:  # noqa: BLE001 (whatever it is, the file goes on)
            self._fail("connecting to the aggregator", error)

    def _drain(self) -> bool:
        """Process what is queued; return whether there was anything."""
        taken = 0
        turn_ends = time.monotonic() + _TURN_SECONDS
        while self._queue and not self._overdue():
            self._take(self._queue.popleft())
            taken += 1
            if taken % 64 == 0:
                self._pump()
                self._flush_when_due()
            if time.monotonic() >= turn_ends and not self._stopping.is_set():
                time.sleep(_COURTESY_SECONDS)
                turn_ends = time.monotonic() + _TURN_SECONDS
        if not taken and not self._more_may_come():
            self._settle()
        return taken > 0

    def _make_slow_events(self) -> bool:
        """Make events that take long, for a round; return whether there was something to do, and time for it."""
        worked = False
        turn_ends = time.monotonic() + _TURN_SECONDS
        round_ends = time.monotonic() + _ROUND_SECONDS
        while (
            self._slow_events
            and self._writer is not None
            and time.monotonic() < round_ends
            and not self._is_past_half_time()
        ):
            worked = True
            try:
                event = self._slow_events.work()
                if event is not None:
                    self._writer.write_event_bytes(event)
            except Exception as error:  # noqa: BLE001 (a caller's callable may raise anything)
                self._fail("rawevent", error)
            if time.monotonic() >= turn_ends and not self._stopping.is_set():
                time.sleep(_COURTESY_SECONDS)
                turn_ends = time.monotonic() + _TURN_SECONDS
        return worked

    def _overdue(self) -> bool:
        return self._stopping.is_set() and time.monotonic() >= self._deadline

    def _tell_left(self) -> None:
        """Count what there was no time for at the end."""
        left = len(self._queue) + len(self._slow_events)
        if left:
            self._counters["dropped"] += left
            _LOGGER.warning(
                "rank %d: %d logged entries, the last ones, are not written: the time to finish was over",
                self._config.rank,
                left,
            )

    def _more_may_come(self) -> bool:
        """Whether other callbacks may log values of the same step: then they make one report together."""
        phase = self.phase
        return phase.name == IN_A_CALLBACK and time.monotonic() - phase.since < _CALLBACK_SECONDS

    def _settle(self) -> None:
        try:
            self._deliver(self._gatherer.settle())
        except Exception as error:  # noqa: BLE001 (the thread outlives whatever a value was)
            self._fail("values", error)

    def _take(self, entry: Entry) -> None:
        try:
            if isinstance(entry, Values):
                self._take_values(entry)
            elif isinstance(entry, Description):
                self._gatherer.describe(entry.tag)
            elif isinstance(entry, Session):
                self._session_wanted = entry.initial_step is None
                if entry.initial_step is not None:
                    self._begin_session(entry.initial_step)
            elif self._writer is not None:
                if isinstance(entry, Summaries):
                    self._writer.write_summary(entry.step, entry.make())
                else:
                    self._slow_events.add(entry.make)
        except Exception as error:  # noqa: BLE001 (a caller's callable may raise anything)
            self._fail(type(entry).__name__.lower(), error)

    def _take_values(self, entry: Values) -> None:
        step = operator.index(entry.step)  # an integer of any kind, such as numpy's
        if not 0 <= step <= messages.STEP_LIMIT:
            raise ValueError(f"step {step} is not from 0 to {messages.STEP_LIMIT}")
        if self._session_wanted:
            self._session_wanted = False
            self._begin_session(max(0, step - 1))
        if self.phase.name == STARTING:
            self.phase = Phase(IN_A_LOOP, time.monotonic())
        values = self._resolver.numbers(entry)
        if entry.alone:
            self._deliver([self._gatherer.single(step, values, entry.wall_time)] if values else [])
        else:
            self._deliver(self._gatherer.add(step, values, entry.wall_time))
        self._step = max(self._step, step)

    def _begin_session(self, initial_step: int) -> None:
        self._deliver(self._gatherer.begin(initial_step))
        if self._writer is not None and (self._writer.continues or initial_step < self._step):
            self._writer.write_session_start(initial_step + 1)
        self._step = initial_step
        if self._run_dir is not None:
            end_vanished(
                self._run_dir,
                rank=self._config.rank,
                world_size=self._config.world_size,
                step=initial_step + 1,
                wall_clock=self._wall_clock,
            )

    def _deliver(self, reports: list[Report]) -> None:
        for report in reports:
            if report.columns[Column.NONFINITE].any():
                self.flush_wanted = True
            if self._writer is not None:
                tags = self._tags_of(report)
                try:
                    self._writer.write_window(report.step, tags, report.columns, wall_time=report.wall_time)
                except Exception as error:  # noqa: BLE001 (the connection goes on without the file)
                    self._fail("writing the event file", error)
            else:
                self._counters["unwritten"] += 1
            if self._uplink is not None:
                self._uplink.put(report)

    def _tags_of(self, report: Report) -> tuple[Tag, ...]:
        """Return the tags of a report; the same tuple as last time for the same array, as most steps share it."""
        known, tags = self._newest_tags
        if report.tag_ids is not known:
            tags = tuple(self._gatherer.tags[i] for i in report.tag_ids)
            self._newest_tags = (report.tag_ids, tags)
        return tags

    def _pump(self, wait_seconds: float = 0.0) -> None:
        if self._uplink is None:
            return
        self._flush()  # what the aggregator hears of stands in the file, also when this process is killed
        self._count_losses()
        now = time.monotonic()
        phase = self.phase
        try:
            self._uplink.pump(
                now=now,
                step=self._step,
                phase=phase.name,
                phase_seconds=max(0.0, now - phase.since),
                wait_seconds=wait_seconds,
            )
            self.adviser.follow(self._uplink.advice)
        except Exception as error:  # noqa: BLE001 (the file goes on without the connection)
            self._fail("the connection to the aggregator", error)
            time.sleep(wait_seconds)
        self._counters["unsent"] = self._uplink.dropped

    def _count_losses(self) -> None:
        if self._writer is not None:
            self._counters["unwritten"] = self._writer.lost_events
        if self._uplink is not None:
            self._uplink.entries_dropped = self._counters["dropped"]
            self._uplink.events_unwritten = self._counters["unwritten"]

    def _flush_when_due(self) -> None:
        now = time.monotonic()
        if self._writer is None or not (self.flush_wanted or now >= self._next_flush):
            return
        self.flush_wanted = False
        self._next_flush = now + self._config.flush_seconds
        self._flush()

    def _flush(self) -> None:
        try:
            if self._writer is not None:
                self._writer.flush()
        except OSError as error:
            self._fail("writing the event file", error)

    def _say_goodbye(self) -> None:
        """Stay until everything has arrived, as long as the aggregator answers, or may again, and time allows."""
        self._close_file()
        self._count_losses()
        if self._counters["unwritten"]:
            _LOGGER.warning(
                "rank %d: %d events are not in its event file, which the disk did not take",
                self._config.rank,
                self._counters["unwritten"],
            )
        uplink = self._uplink
        if uplink is None:
            return
        uplink.ask_anew()
        while not uplink.delivered and uplink.responsive and time.monotonic() < self._deadline:
            uplink.beat(now=time.monotonic(), step=self._step, phase="leaving", phase_seconds=0.0)
            self._pump(_ANSWER_SECONDS)
        uplink.say_goodbye(self._reason)

    def _close_file(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError as error:
            self._fail("closing the event file", error)

    def _close(self) -> None:
        self._close_file()
        try:
            if self._uplink is not None:
                self._uplink.close()
        except OSError as error:
            self._fail("closing the connection", error)
        # After a failure the script may train on, in the same run; else the end of the process closes it.
        if not self._reason and self.location is not None:
            embedded.release(self.location)

    def _fail(self, what: str, error: BaseException) -> None:
        """Count a failure, and say it once."""
        self._counters["failed"] += 1
        if what not in self._reported:
            self._reported.add(what)
            _LOGGER.warning(
                "rank %d: %s failed and is not reported again: %s: %s",
                self._config.rank,
                what,
                type(error).__name__,
                error,
            )
