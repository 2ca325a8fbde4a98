"""The aggregator as a child of the launcher, started again when it crashes.

It runs in a session of its own, so that the terminal's Ctrl-C does not reach it, and holds the reading end of
a pipe, the lifeline, whose writing end only the launcher has: end of file there means that no rank will come
any more, whether the launcher closed it or died. Nothing here waits.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from launch.processes import send, start
from rankside.errors import RefusedError
from rankside.python_program import python_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launch.processes import Ended

_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 10.0
_HEALTHY_SECONDS = 60.0


class AggregatorProcess:
    """One `crossrank serve` or `relay` after the other, never two at a time.

    Times are the caller's monotonic seconds. name: relay or aggregator. pid: of the one that runs, None when none
    does. said: the words with which it said that it listens: the endpoint, and from a relay the run's name. refused:
    whether the root does not let this node's relay in, so that no other one is started.
    """

    def __init__(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], inherit_fds: Sequence[int] = ()
    ) -> None:
        """arguments: of crossrank, without the descriptors. inherit_fds: others that it keeps open."""
        self.pid: int | None = None
        self.said: tuple[str, ...] = ()
        self.refused = False
        self.name = "relay" if arguments[0] == "relay" else "aggregator"
        self._arguments = tuple(arguments)
        self._environment = environment
        self._inherit_fds = tuple(inherit_fds)
        self._lifeline_read, self._lifeline_write = os.pipe()
        self._ready_read: int | None = None
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._delay_seconds = _FIRST_DELAY_SECONDS

    def start(self, now: float) -> None:
        """Start it; raises OSError when the system cannot."""
        self._forget_ready()
        self._restart_at = None
        self._started_at = now
        ready_read, ready_write = os.pipe()
        os.set_blocking(ready_read, False)
        self._ready_read = ready_read
        descriptors = ("--ready-fd", str(ready_write), "--lifeline-fd", str(self._lifeline_read))
        argv = python_program("launch.cli", "main", *self._arguments, *descriptors)
        try:
            self.pid = start(
                argv,
                environment=self._environment,
                new_session=True,
                inherit_fds=(ready_write, self._lifeline_read, *self._inherit_fds),
            )
        finally:
            os.close(ready_write)

    def poll_listening(self) -> bool:
        """Return whether the one that runs has written its endpoint line."""
        if not self.said and self._ready_read is not None:
            with contextlib.suppress(BlockingIOError):
                line = os.read(self._ready_read, 4096).decode("utf-8", "replace").strip("\n")
                self.said = tuple(line.split(" ", 1)) if line else ()
        return bool(self.said)

    def ended(self, ended: Ended, now: float) -> str:
        """Take note that it has ended although ranks may still come; return the line that says so."""
        self.pid = None
        if self.name == "relay" and ended.code == RefusedError.exit_code:
            self.refused = True
            return "node 0 does not let this node's relay in; training goes on, recorded on this node only"
        if now - self._started_at > _HEALTHY_SECONDS:
            self._delay_seconds = _FIRST_DELAY_SECONDS
        delay_seconds = self._delay_seconds
        self._restart_at = now + delay_seconds
        self._delay_seconds = min(2 * delay_seconds, _LONGEST_DELAY_SECONDS)
        return f"the {self.name} {ended.how}; training goes on, a new one starts in {delay_seconds:g} s"

    def restart_when_due(self, now: float) -> None:
        """Start the next one if its time has come; raises OSError when the system cannot."""
        if self._restart_at is not None and now >= self._restart_at:
            self.start(now)

    def seconds_to_restart(self, now: float) -> float | None:
        """Return the seconds until the next one is due, None when none is."""
        return None if self._restart_at is None else max(0.0, self._restart_at - now)

    def close_lifeline(self) -> None:
        """Say that no rank will come any more; the aggregator ends once those it knows have left."""
        if self._lifeline_write >= 0:
            os.close(self._lifeline_write)
            self._lifeline_write = -1

    def stop(self, *, force: bool = False) -> None:
        """Ask it to close everything and end; with `force`, kill it."""
        if self.pid is not None:
            send(self.pid, signal.SIGKILL if force else signal.SIGTERM)

    def close(self) -> None:
        """Let go of the descriptors."""
        self.close_lifeline()
        self._forget_ready()
        if self._lifeline_read >= 0:
            os.close(self._lifeline_read)
            self._lifeline_read = -1

    def _forget_ready(self) -> None:
        self.said = ()
        if self._ready_read is not None:
            os.close(self._ready_read)
            self._ready_read = None
