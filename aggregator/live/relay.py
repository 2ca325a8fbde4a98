"""A node's relay, without a socket: turns the blocks of its ranks into one block a step, and forwards it.

It keeps nothing that matters. Every row carries its rank's own number, acknowledgements come from the root and
are handed down, and what is lost between relay and root is found by the rank's next heartbeat and sent again by
the rank. So a relay may be killed at any time, and the root's figures are those it would have without relays.
Relays can stand on relays.

A step's rows wait for each other until all ranks of the relay have reported it, at most a moment, and are sent
before any heartbeat, so that the root's answer to a heartbeat covers them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.live.refusals import Refusals
from aggregator.live.session import OutOfStepError, Session, Sessions, Strangers
from aggregator.tag_table import TagTable
from rankside import messages, wire
from rankside.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Int64Array = npt.NDArray[np.int64]

_LOGGER = logging.getLogger("crossrank")
_HOLD_SECONDS = 0.2  # how long the first rows of a step wait for the others
_BEAT_SECONDS = 0.25  # between two heartbeats for all ranks together
_BLOCK_BYTES = 4 << 20  # of columns, from which on a block waits for nobody
_TAGS_AT_ONCE = 1000  # so that a table of any size fits into messages


class _Rank(NamedTuple):
    """A rank behind this relay, and the connection it came on."""

    hello: messages.Hello
    identity: bytes


class _Gathered:
    """The rows of one step and one layout of tags so far."""

    def __init__(self, tag_ids: Int64Array, now: float) -> None:
        self.tag_ids = tag_ids
        self.since = now
        self.rows = 0
        self.bytes = 0
        self.parts: list[messages.Block] = []

    def block(self) -> messages.Block:
        """Return all rows as one block."""
        return messages.Block(
            self.parts[0].step,
            np.concatenate([part.rows for part in self.parts]),
            np.concatenate([part.wall_times for part in self.parts]),
            self.tag_ids,
            np.concatenate([part.columns for part in self.parts], axis=1),
        )


class Relay:
    """One relay between its ranks (down) and the root or a further relay (up).

    joined: whether the root knows this relay, as far as is known here; `join` asks it to.
    run: the run's name as the root gave it, or "" until it has. Ranks are introduced to the root under that name.
    forwarded: blocks sent up. unsent: messages that the connection upward had no room for, which the ranks send
    again. foreign: what a peer said of ranks that it does not speak for. refusal: why the root refuses this relay,
    or "". newcomers: ranks that have said hello, until whoever runs this relay takes them out.
    """

    def __init__(
        self, *, send_down: Callable[[bytes, bytes], None], send_up: Callable[[bytes], bool]
    ) -> None:
        self.run = ""
        self.joined = False
        self.refusal = ""
        self.newcomers: list[messages.Hello] = []
        self.forwarded = 0
        self.unsent = 0
        self.foreign = 0
        self._send_down = send_down
        self._send_up = send_up
        self._table = TagTable()
        self._tags_sent = 0
        self._sessions = Sessions(self._table)
        self._strangers = Strangers()
        self._refusals = Refusals()
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._gathered: dict[tuple[int, int], _Gathered] = {}
        self._beats: dict[int, messages.Beat] = {}
        self._next_beat = 0.0

    @property
    def hellos(self) -> list[messages.Hello]:
        """The ranks that are behind this relay now."""
        return [rank.hello for rank in self._ranks.values()]

    def join(self) -> None:
        """Ask the root which run this is."""
        self._up(messages.Join())

    def take_down(self, identity: bytes, payload: bytes, *, now: float) -> None:
        """Take what came from a rank or from a relay below."""
        try:
            self._dispatch(identity, wire.decode(payload), now)
        except OutOfStepError:
            self._forget(identity)
            self._down(identity, messages.Unknown())
        except WireError as error:
            self._refusals.say(messages.NOBODY, str(error))
            self._forget(identity)
            self._down(identity, messages.Refused(messages.NOBODY, 0, str(error)[:1000]))

    def take_up(self, payload: bytes) -> None:
        """Take what came from the root."""
        try:
            message = wire.decode(payload)
        except WireError as error:
            _LOGGER.warning("the root sent nonsense, ignored: %s", error)
            return
        if isinstance(message, messages.Welcome):
            self.run = message.run
            self.joined = True
            self._begin_again()
        elif isinstance(message, messages.Unknown):
            self.joined = False
        elif isinstance(message, messages.Pulse):
            self._hand_down_pulse(message)
        elif isinstance(message, (messages.Refused, messages.Advice)):
            self._hand_down(message)

    def pump(self, *, now: float) -> None:
        """Send up what has waited long enough."""
        if not self.joined:
            self._gathered.clear()  # the root would not take it; the ranks send it when they begin again
            self._beats.clear()
            return
        due = [
            key
            for key, gathered in self._gathered.items()
            if gathered.rows >= len(self._ranks) or now - gathered.since >= _HOLD_SECONDS
        ]
        if due:
            self.flush(until=max(due)[0])
        if self._beats and now >= self._next_beat:
            self.flush()
            self._up(messages.Heartbeat(tuple(self._beats.values())))
            self._beats.clear()
            self._next_beat = now + _BEAT_SECONDS

    def flush(self, *, until: int = messages.STEP_LIMIT) -> None:
        """Send up the rows that wait for others, of this step and all earlier ones, in the order of steps."""
        for key in sorted(self._gathered):
            if key[0] <= until:
                self._forward(key)

    def lose(self, hello: messages.Hello) -> None:
        """Say that a rank's process has ended without a goodbye."""
        self._leave(messages.Goodbye(hello.rank, hello.incarnation, 0, messages.GONE))

    def _dispatch(self, identity: bytes, message: messages.Message, now: float) -> None:
        if isinstance(message, messages.Join):
            self._sessions.open(identity)
            if self.run:
                self._down(identity, messages.Welcome(self.run))
            return
        if isinstance(message, messages.Hello):
            self._introduce(identity, message)
            return
        session = self._sessions.get(identity)
        if session is None:
            if self._strangers.ask(identity, message):
                self._down(identity, messages.Unknown())
        elif isinstance(message, messages.Block):
            self._gather(session, message, now)
        elif isinstance(message, messages.Tags):
            session.extend(message.first, message.tags)
        elif isinstance(message, messages.Heartbeat):
            self._take_beats(identity, session, message)
        elif isinstance(message, messages.Goodbye):
            self._take_goodbye(session, message)
        else:
            raise WireError(f"a rank does not send {type(message).__name__}")

    def _introduce(self, identity: bytes, hello: messages.Hello) -> None:
        self._sessions.introduce(identity, hello.rank, hello.incarnation)
        self._ranks[hello.rank, hello.incarnation] = _Rank(hello, identity)
        self.newcomers.append(hello)
        if self.run:
            self._up(hello._replace(run=self.run))

    def _take_beats(self, identity: bytes, session: Session, heartbeat: messages.Heartbeat) -> None:
        known = [beat for beat in heartbeat.beats if (beat.rank, beat.incarnation) in session.ranks]
        self._beats.update((beat.rank, beat) for beat in known)
        if len(known) < len(heartbeat.beats):
            self.foreign += len(heartbeat.beats) - len(known)
            self._down(identity, messages.Unknown())  # their hello got lost on the way

    def _take_goodbye(self, session: Session, goodbye: messages.Goodbye) -> None:
        if (goodbye.rank, goodbye.incarnation) not in session.ranks:
            self.foreign += 1
            return
        self._leave(goodbye)

    def _leave(self, goodbye: messages.Goodbye) -> None:
        self.flush()
        self._up(goodbye)
        self._ranks.pop((goodbye.rank, goodbye.incarnation), None)
        self._beats.pop(goodbye.rank, None)

    def _gather(self, session: Session, block: messages.Block, now: float) -> None:
        tag_ids, order = session.layout(block.tag_ids)
        if order is not None:
            block = block._replace(columns=block.columns[:, :, order])
        own = [(rank, incarnation) in session.ranks for rank, incarnation, _ in block.rows.tolist()]
        if not all(own):
            self.foreign += len(own) - sum(own)
            if not any(own):
                return
            block = block._replace(
                rows=block.rows[own], wall_times=block.wall_times[own], columns=block.columns[:, own]
            )
        key = block.step, id(tag_ids)
        gathered = self._gathered.get(key)
        if gathered is None:
            gathered = self._gathered[key] = _Gathered(tag_ids, now)
        gathered.parts.append(block)
        gathered.rows += len(block.rows)
        gathered.bytes += block.columns.nbytes
        if gathered.bytes >= _BLOCK_BYTES:
            self.flush(until=block.step)

    def _forward(self, key: tuple[int, int]) -> None:
        block = self._gathered.pop(key).block()
        while self._tags_sent < len(self._table.tags):
            news = tuple(self._table.tags[self._tags_sent : self._tags_sent + _TAGS_AT_ONCE])
            if not self._up(messages.Tags(self._tags_sent, news)):
                return
            self._tags_sent += len(news)
        self.forwarded += self._up(block)

    def _begin_again(self) -> None:
        """Introduce everybody anew, and have them send what the root may lack."""
        self._tags_sent = 0
        self._gathered.clear()
        self._beats.clear()
        self._ranks.clear()
        for identity in self._sessions:
            self._sessions.forget(identity)
            self._strangers.forget(identity)
            self._down(identity, messages.Unknown())

    def _hand_down_pulse(self, pulse: messages.Pulse) -> None:
        by_identity: dict[bytes, list[int]] = {}
        for i, (rank, incarnation) in enumerate(pulse.rows[:, :2].tolist()):
            known = self._ranks.get((rank, incarnation))
            if known is not None:
                by_identity.setdefault(known.identity, []).append(i)
        for identity, rows in by_identity.items():
            self._down(identity, messages.Pulse(pulse.rows[rows]))

    def _hand_down(self, message: messages.Refused | messages.Advice) -> None:
        known = self._ranks.get((message.rank, message.incarnation))
        if known is not None:
            self._down(known.identity, message)
        elif isinstance(message, messages.Refused) and message.rank == messages.NOBODY:
            self.refusal = message.reason

    def _forget(self, identity: bytes) -> None:
        self._sessions.forget(identity)
        self._ranks = {key: rank for key, rank in self._ranks.items() if rank.identity != identity}

    def _up(self, message: messages.Message) -> bool:
        sent = self._send_up(wire.encode(message))
        self.unsent += not sent
        return sent

    def _down(self, identity: bytes, message: messages.Message) -> None:
        self._send_down(identity, wire.encode(message))
