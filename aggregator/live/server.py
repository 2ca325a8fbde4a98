"""The aggregator's loop: socket in, pipeline, files out, and the decision when the run is over.

One thread does everything in turn, so nothing here needs a lock. Files are flushed, the state published and
acknowledgements given about twice a second.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aggregator.live import resume
from rankside.machine import machine_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aggregator.live.lifeline import Lifeline
    from aggregator.live.processes import Processes
    from aggregator.live.service import Service
    from aggregator.pipeline import Pipeline
    from rankside.transport import Hub

_LOGGER = logging.getLogger("crossrank")
_WAIT_SECONDS = 0.1
_BATCH = 2000  # messages between two looks at the clock
_FLUSH_SECONDS = 0.5
_LAST_SECONDS = 2.0  # for what has arrived when the run is over or stopped
_LOOK_SECONDS = 1.0  # between two looks for ranks that are gone


class Server:
    """Runs one service on one hub, until the lifeline is cut and every rank that came has left.

    look: called about once a second with the clock's value, to look at the ranks' signs of life.
    """

    def __init__(
        self,
        hub: Hub,
        service: Service,
        pipeline: Pipeline,
        *,
        run_dir: Path,
        lifeline: Lifeline,
        processes: Processes,
        look: Callable[[float], None],
    ) -> None:
        self._hub = hub
        self._service = service
        self._pipeline = pipeline
        self._run_dir = run_dir
        self._lifeline = lifeline
        self._look = look
        self._processes = processes
        self._machine = machine_name()
        hub.wake_on(processes.descriptor)
        self._next_flush = 0.0
        self._next_look = 0.0

    def run(self, *, stopped: Callable[[], bool]) -> None:
        """Serve until the run is over, or `stopped` says so; then close every step and every file."""
        while not stopped():
            received = self._serve_once(_WAIT_SECONDS)
            if not received and self._over():
                break
        # What has arrived is taken in; ranks that train on may send without an end.
        deadline = time.monotonic() + _LAST_SECONDS
        while self._serve_once(0.0) and time.monotonic() < deadline:
            pass
        self._pipeline.finish()
        self._store()
        self._pipeline.close()

    def _serve_once(self, wait_seconds: float) -> int:
        messages = self._hub.receive(wait_seconds=wait_seconds, at_most=_BATCH)
        now = time.monotonic()
        self._processes.look(now=now)
        for identity, payload in messages:
            self._service.take(identity, payload, now=now)
        self._pipeline.advance(now=now)
        if now >= self._next_flush:
            self._store()
            self._next_flush = time.monotonic() + _FLUSH_SECONDS
        if now >= self._next_look:
            self._service.lose_silent(
                now=now, machine=self._machine, ended=lambda pid: self._processes.ended(pid, now=now)
            )
            self._look(now)
            self._next_look = now + _LOOK_SECONDS
        return len(messages)

    def _store(self) -> None:
        """Bring everything closed to disk, and only then count it as stored."""
        if not self._pipeline.flush():
            return
        self._service.store()
        aligner = self._pipeline.aligner
        state = resume.State(
            aligner.closed_until,
            aligner.world_size,
            self._service.stored_ranks(),
            resume.measure(self._run_dir),
        )
        try:
            resume.publish(self._run_dir, state)
        except OSError as error:
            _LOGGER.warning(
                "the aggregator's state cannot be written (%s); nothing is acknowledged until it can", error
            )
            return
        self._service.acknowledge()

    def _over(self) -> bool:
        return self._lifeline.cut and self._service.members.all_gone
