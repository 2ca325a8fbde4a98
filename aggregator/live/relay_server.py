"""The relay's loop: a hub for the ranks of a node, a link to the root, and the decision when it is done."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from rankside.errors import RefusedError
from rankside.machine import machine_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggregator.live.lifeline import Lifeline
    from aggregator.live.processes import Processes
    from aggregator.live.relay import Relay
    from rankside.transport import Hub, Link

_WAIT_SECONDS = 0.02
_BATCH = 2000
_JOIN_SECONDS = 1.0  # between two attempts to learn the run's name
_LAST_WORDS_SECONDS = 1.0  # for what a rank sent before its process ended
_LAST_SECONDS = 2.0
_REFUSALS = 3  # of the connection; a single one may be an accident of the network


class RelayServer:
    """Runs one relay between one hub and one link."""

    def __init__(
        self, hub: Hub, link: Link, relay: Relay, *, lifeline: Lifeline, processes: Processes
    ) -> None:
        self._hub = hub
        self._link = link
        self._relay = relay
        self._lifeline = lifeline
        self._processes = processes
        self._machine = machine_name()
        self._next_join = 0.0
        self._ended: deque[tuple[float, int]] = deque()  # when processes ended, and their numbers

    def join(self, *, stopped: Callable[[], bool]) -> str:
        """Wait for the root to say which run this is, and return its name; "" where it was stopped before.

        Raises `RefusedError` where the root refuses this relay, or its key.
        """
        while not self._relay.run and not stopped() and not self._lifeline.cut:
            self._serve_once()
            if self._relay.refusal:
                raise RefusedError(f"the root refuses this relay: {self._relay.refusal}")
            if self._link.turned_away >= _REFUSALS:
                raise RefusedError(
                    "the root refuses this relay: the key is missing on one side, or it is another one"
                )
        return self._relay.run

    def run(self, *, stopped: Callable[[], bool]) -> None:
        """Relay until every rank has left and the lifeline is cut, or `stopped` says so."""
        while not stopped():
            received = self._serve_once()
            if not received and self._lifeline.cut and not self._relay.hellos:
                break
        deadline = time.monotonic() + _LAST_SECONDS
        while self._serve_once() and time.monotonic() < deadline:
            pass
        self._relay.flush()

    def _serve_once(self) -> int:
        now = time.monotonic()
        if not self._relay.joined and now >= self._next_join:
            self._relay.join()
            self._next_join = now + _JOIN_SECONDS
        down = self._hub.receive(wait_seconds=_WAIT_SECONDS, at_most=_BATCH)
        now = time.monotonic()
        self._ended += [(now, pid) for pid in self._processes.look(now=now)]
        for identity, payload in down:
            self._relay.take_down(identity, payload, now=now)
        self._watch_newcomers(now)
        up = self._link.receive()
        for payload in up:
            self._relay.take_up(payload)
        self._relay.pump(now=now)
        self._lose_dead(now)
        return len(down) + len(up)

    def _watch_newcomers(self, now: float) -> None:
        for hello in self._relay.newcomers:
            if hello.machine == self._machine and self._processes.ended(hello.pid, now=now) is not None:
                self._ended.append((now, hello.pid))
        self._relay.newcomers.clear()

    def _lose_dead(self, now: float) -> None:
        """Report ranks whose process has ended, all equally long after it, so that the root sees who ended first."""
        while self._ended and now - self._ended[0][0] >= _LAST_WORDS_SECONDS:
            _, pid = self._ended.popleft()
            if self._processes.ended(pid, now=now) is not None:
                for hello in self._relay.hellos:
                    if (hello.machine, hello.pid) == (self._machine, pid):
                        self._relay.lose(hello)
