"""Takes the numbers of a step from a training loop, in microseconds, and leaves the rest to a background thread.

    recorder = Recorder(RankConfig.from_environment())
    for step in range(1, 1001):
        recorder.log(step, {"loss": train_one_step()})
    recorder.finish()

Never raises into training and never blocks it: a full queue drops the entry and counts it. In a process forked
from the rank, such as a data loader's worker, every method does nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from rankside.embedded import release
from rankside.entries import Description, Entry, Phase, RawEvent, Session, Summaries, Values
from rankside.process_end import ProcessEnd
from rankside.shipper import Shipper
from rankside.snapshot import snapshots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rankside.config import RankConfig
    from rankside.embedded import Location
    from rankside.tags import Tag

    Value = float | Callable[[], float]

_LOGGER = logging.getLogger("crossrank")


class Recorder:
    """Records one rank's numbers.

    counters: entries `dropped` from a full queue, `unsent` blocks that left the outbox unacknowledged,
    `failed` operations, `unwritten` events that the disk did not take.

    wall_clock: seconds since the epoch; it dates values and names files, and may be wrong without harm.
    """

    def __init__(self, config: RankConfig, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.counters: Counter[str] = Counter()
        self._config = config
        self._wall_clock = wall_clock
        self._queue: deque[Entry] = deque()
        self._shipper: Shipper | None = None
        self._process_end: ProcessEnd | None = None
        self._location: Location | None = None  # of a run that failed and may go on
        self._finished = False
        self._told: set[str] = set()  # what was said about dropped entries
        self._starting = threading.RLock()  # several threads may log the first value
        self._pid = os.getpid()

    def start(self, *, initial_step: int | None = None) -> None:
        """Begin recording, or begin again; files and connection are opened in the background.

        initial_step: the step after which this training begins; what earlier starts of this rank wrote of later
        steps is void. Unless given, it is the one before the first step that is logged. The first `log` starts
        by itself where this was not called, and the end of the process finishes.
        """
        if not self._serves():
            return
        with self._starting:
            self._finished = False
            self._put(Session(initial_step))
            if self._shipper is None:
                self._start_shipper()

    def log(
        self,
        step: int,
        values: Mapping[str, Value],
        *,
        deferred: Sequence[Callable[[], Mapping[str, Value]]] = (),
    ) -> None:
        """Record values of a step.

        step: the training step, from 1. values: numbers by tag, or callables that return one; the map, and an
        array or a tensor in it, may be used again at once. deferred: callables that return further numbers by
        tag. Callables run on the background thread. Values of one step may come in several calls; steps must
        ascend.
        """
        self.hand_over(step, _as_it_is(values), deferred)

    def hand_over(
        self,
        step: int,
        values: Mapping[str, Value],
        deferred: Sequence[Callable[[], Mapping[str, Value]]] = (),
    ) -> None:
        """Record values as `log` does, of a map and numbers that the caller gives away; nothing is copied."""
        self._put_values(step, values, deferred)

    def report(self, step: int, values: Mapping[str, Value]) -> None:
        """Record values of a step as a report of their own, whatever the sampling; such as evaluation metrics."""
        self._put_values(step, _as_it_is(values), (), alone=True)

    def record(self, step: int, make: Callable[[], Iterable[bytes]]) -> None:
        """Write to the rank's event file the serialized Summary.Value messages that `make` returns."""
        self._put(Summaries(step, make))

    def record_event(self, make: Callable[[], Iterable[bytes]]) -> None:
        """Write to the rank's event file the serialized Event whose pieces `make` yields.

        Between two pieces, of which some may be empty, the background thread does what else there is to do.
        """
        self._put(RawEvent(make))

    def describe(self, *tags: Tag) -> None:
        """Declare tags, before their first value."""
        for tag in tags:
            self._put(Description(tag))

    def phase(self, name: str) -> None:
        """Say what the rank is doing from now on, such as "fetching data"; it goes into the signs of life."""
        if self._shipper is not None:
            self._shipper.phase = Phase(name, time.monotonic())

    @property
    def doing(self) -> str:
        """What the rank was last said to be doing; "" before the recorder is started."""
        return self._shipper.phase.name if self._shipper is not None else ""

    @property
    def standing(self) -> str:
        """Where this rank is against the others, in words; "" as long as the aggregator has not told."""
        return self._shipper.adviser.standing if self._shipper is not None else ""

    @property
    def dense_until(self) -> int:
        """Up to which step the aggregator asks for a report of every step; -1 as long as it has not."""
        return self._shipper.adviser.dense_until if self._shipper is not None else -1

    @property
    def stop_wanted(self) -> str:
        """Why training should stop in an orderly way, or "": only where the user has switched that on."""
        return self._shipper.adviser.stop if self._shipper is not None else ""

    def flush(self) -> None:
        """Have the background thread write everything out soon; does not wait for it."""
        if self._shipper is not None:
            self._shipper.flush_wanted = True

    def finish(self, *, failed: str | None = None, timeout_seconds: float = 5.0) -> None:
        """Write and deliver what is left, say goodbye, and close; takes at most about `timeout_seconds`.

        failed: what ended training, where it did not end as it should; a later `start` then goes on in the same
        run, until this is called without it.
        """
        if not self._serves():
            return
        with self._starting:
            shipper, self._shipper = self._shipper, None
            if shipper is not None:
                self._finished = True
        if shipper is None:
            if self._location is not None and not failed:
                release(self._location)
                self._location = None
            return
        if self._process_end is not None:
            self._process_end.cancel()
        shipper.stop(reason=failed or "", timeout_seconds=timeout_seconds)
        self._location = shipper.location if failed else None

    def _start_shipper(self) -> None:
        shipper = Shipper(
            self._config,
            self._queue,
            self.counters,
            wall_clock=self._wall_clock,
            location=self._location,
        )
        self._location = None
        try:
            shipper.start()
        except RuntimeError as error:  # the system has no thread left
            self.counters["failed"] += 1
            self._finished = True
            _LOGGER.warning("rank %d: nothing is recorded: %s", self._config.rank, error)
            return
        self._shipper = shipper
        self._process_end = ProcessEnd(self.finish)

    def _put_values(
        self,
        step: int,
        values: Mapping[str, Value],
        deferred: Sequence[Callable[[], Mapping[str, Value]]],
        *,
        alone: bool = False,
    ) -> None:
        if not self._serves():
            return
        if self._shipper is None and not self._finished:
            with self._starting:
                if self._shipper is None:
                    self.start()
        self._take(Values(step, values, deferred, self._wall_clock(), alone))

    def _serves(self) -> bool:
        return self._config.active and os.getpid() == self._pid

    def _put(self, entry: Entry) -> None:
        if self._serves():
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        if self._finished:
            self._drop("recording has finished: what is logged before it starts again is dropped and counted")
        elif len(self._queue) >= self._config.queue_limit:
            self._drop(
                f"{self._config.queue_limit} logged entries are waiting to be written; newer ones are dropped and "
                "counted"
            )
        else:
            self._queue.append(entry)

    def _drop(self, why: str) -> None:
        self.counters["dropped"] += 1
        if why not in self._told:
            self._told.add(why)
            _LOGGER.warning("rank %d: %s", self._config.rank, why)


def _as_it_is(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the values as they are now; what cannot be taken is left to the background thread to tell."""
    try:
        return snapshots_of(values)
    except Exception:  # noqa: BLE001 (a caller's value may be anything)
        return values
