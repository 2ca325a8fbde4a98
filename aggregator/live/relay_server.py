"""The relay's loop: a hub for the ranks of a node, a link to the root, and the decision when it is done."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from aggregator.live.lifeline import runs
from rankside.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggregator.live.lifeline import Lifeline
    from aggregator.live.relay import Relay
    from rankside.messages import Hello
    from rankside.transport import Hub, Link

_WAIT_SECONDS = 0.02
_BATCH = 2000
_JOIN_SECONDS = 1.0  # between two attempts to learn the run's name
_LOOK_SECONDS = 1.0
_LAST_SECONDS = 2.0
_REFUSALS = 3  # of the connection; a single one may be an accident of the network


class RelayServer:
    """Runs one relay between one hub and one link."""

    def __init__(self, hub: Hub, link: Link, relay: Relay, *, lifeline: Lifeline) -> None:
        self._hub = hub
        self._link = link
        self._relay = relay
        self._lifeline = lifeline
        self._host = socket.gethostname()
        self._next_join = 0.0
        self._next_look = 0.0
        self._suspects: list[Hello] = []

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
        for identity, payload in down:
            self._relay.take_down(identity, payload, now=now)
        up = self._link.receive()
        for payload in up:
            self._relay.take_up(payload)
        self._relay.pump(now=now)
        if now >= self._next_look:
            self._lose_dead()
            self._next_look = now + _LOOK_SECONDS
        return len(down) + len(up)

    def _lose_dead(self) -> None:
        """Report ranks whose process has ended, at the second look, so that their last messages come first."""
        dead = [hello for hello in self._relay.hellos if hello.host == self._host and not runs(hello.pid)]
        for hello in dead:
            if hello in self._suspects:
                self._relay.lose(hello)
        self._suspects = dead
