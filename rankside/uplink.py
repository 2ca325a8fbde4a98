"""The rank's half of the protocol: says hello, sends blocks, learns what has arrived, sends again what has not.

Not thread-safe; one thread owns it. It never blocks longer than it was asked to, and an aggregator that is
slow, frozen or gone costs nothing but the bounded outbox.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from rankside import messages, wire
from rankside.errors import WireError
from rankside.outbox import Outbox
from rankside.transport import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankside.gather import Report
    from rankside.keys import Keys
    from rankside.tags import Tag

_LOGGER = logging.getLogger("crossrank")
_BEATS = 20  # without an answer, after which the aggregator is taken for gone
_RESTART_BEATS = 60  # more of them, 3 s, when the rank leaves: by then a crashed one has been started again


class Uplink:
    """One rank's connection to the aggregator or a relay.

    refusal: why the aggregator will not serve this rank, or "". advice: the last that it gave, or None.
    entries_dropped, events_unwritten: what the aggregator is told that this rank could not keep.
    """

    def __init__(
        self,
        endpoint: str,
        hello: messages.Hello,
        tags: Sequence[Tag],
        *,
        buffer_bytes: int,
        heartbeat_seconds: float,
        keys: Keys | None = None,
        insecure: bool = False,
    ) -> None:
        self._link = Link(endpoint, keys=keys, insecure=insecure)
        self._hello = hello
        self._tags = tags
        self._heartbeat_seconds = heartbeat_seconds
        self._outbox = Outbox(limit_bytes=buffer_bytes)
        self._tags_sent = 0
        self._introduced = False
        self._next_beat = 0.0
        self._received = 0
        self._unanswered = 0
        self._heard = False
        self._patience_beats = _BEATS
        self.refusal = ""
        self.entries_dropped = 0
        self.events_unwritten = 0
        self.advice: messages.Advice | None = None

    @property
    def dropped(self) -> int:
        """Blocks that left the bounded outbox without being acknowledged."""
        return self._outbox.dropped

    @property
    def delivered(self) -> bool:
        """Whether the aggregator has said that everything arrived."""
        return self._received >= self._outbox.next_sequence - 1

    def ask_anew(self) -> None:
        """Believe that everything arrived only once the aggregator says so again; the one that did may be gone.

        Where it has answered lately and not stored everything, it may be crashed and started again just now, which is
        waited for. One that never answered, or has long been silent, delays nothing.
        """
        self._received = -1
        if self._heard and self.responsive and len(self._outbox):
            self._patience_beats += _RESTART_BEATS

    @property
    def responsive(self) -> bool:
        """Whether the aggregator answers, as far as this side can tell."""
        return not self.refusal and self._unanswered < self._patience_beats

    def put(self, report: Report) -> None:
        """Take a report for delivery."""
        if self.refusal:
            return
        row = np.array([[self._hello.rank, self._hello.incarnation, self._outbox.next_sequence]], np.int64)
        columns = report.columns[:, np.newaxis, :]
        block = messages.Block(report.step, row, np.array([report.wall_time]), report.tag_ids, columns)
        self._outbox.append(wire.encode(block))

    def pump(self, *, now: float, step: int, phase: str, phase_seconds: float, wait_seconds: float) -> None:
        """Send what is due and read what has come, waiting up to `wait_seconds` for something to read.

        now: seconds of a monotonic clock. step, phase, phase_seconds: what the rank is doing, for the heartbeat.
        """
        if not self.refusal:
            self._send_due()
            if now >= self._next_beat:
                self.beat(now=now, step=step, phase=phase, phase_seconds=phase_seconds)
        for payload in self._link.receive(wait_seconds=wait_seconds):
            self._take(payload)

    def beat(self, *, now: float, step: int, phase: str, phase_seconds: float) -> None:
        """Send a sign of life, which the aggregator answers with what it has."""
        rank, incarnation = self._hello.rank, self._hello.incarnation
        outbox = self._outbox
        beat = messages.Beat(
            rank,
            incarnation,
            outbox.oldest,
            outbox.sent,
            step,
            phase,
            phase_seconds,
            self.entries_dropped,
            self.events_unwritten,
        )
        if self._introduced:
            self._link.send(wire.encode(messages.Heartbeat((beat,))))
        self._unanswered += 1  # also where there is no room for it, because nobody takes what was sent before
        self._next_beat = now + self._heartbeat_seconds

    def say_goodbye(self, reason: str) -> None:
        """Tell the aggregator that this rank leaves."""
        goodbye = messages.Goodbye(
            self._hello.rank, self._hello.incarnation, self._outbox.next_sequence - 1, reason
        )
        self._link.send(wire.encode(goodbye))

    def close(self) -> None:
        """Close the connection, giving what is queued a moment to leave."""
        self._link.close(linger_seconds=0.5 if self.responsive else 0.0)

    def _send_due(self) -> None:
        if not self._introduced:
            self._introduced = self._link.send(wire.encode(self._hello))
        while self._introduced:
            if self._tags_sent < len(self._tags):
                news = messages.Tags(self._tags_sent, tuple(self._tags[self._tags_sent :]))
                if not self._link.send(wire.encode(news)):
                    return
                self._tags_sent = len(self._tags)
            payload = self._outbox.peek()
            if payload is None or not self._link.send(payload):
                return
            self._outbox.advance()

    def _take(self, payload: bytes) -> None:
        try:
            message = wire.decode(payload)
        except WireError as error:
            _LOGGER.warning("rank %d: the aggregator sent nonsense, ignored: %s", self._hello.rank, error)
            return
        self._unanswered = 0
        self._heard = True
        if isinstance(message, messages.Pulse):
            for rank, incarnation, asked, received, stored in message.rows.tolist():
                if (rank, incarnation) == (self._hello.rank, self._hello.incarnation):
                    self._received = received
                    self._outbox.acknowledge(stored)
                    if received < asked:
                        self._outbox.resend_after(received)
        elif isinstance(message, messages.Unknown):
            self._introduced = False
            self._tags_sent = 0
            self._received = -1
            self._outbox.resend_after(0)
        elif isinstance(message, messages.Advice):
            self.advice = message
        elif isinstance(message, messages.Refused):
            if message.rank not in (messages.NOBODY, self._hello.rank):
                return
            self.refusal = message.reason
            _LOGGER.warning(
                "rank %d: the aggregator refused this rank (%s); it goes on recording to its own files",
                self._hello.rank,
                message.reason,
            )
