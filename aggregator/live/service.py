"""The aggregator's half of the protocol, without a socket: takes payloads, feeds the pipeline, answers.

A peer that sends what is not a valid message is refused, forgotten and counted; the others are served on.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.align import Admission, Report
from aggregator.live.members import Member, Members, Patience, Presence
from aggregator.live.refusals import Refusals
from aggregator.live.session import OutOfStepError, Session, Sessions, Strangers
from rankside import messages, wire
from rankside.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from aggregator.align import Aligner

    Int64Array = npt.NDArray[np.int64]

_LOGGER = logging.getLogger("crossrank")
_LOSSES_LOGGED = 8  # at a time, since all ranks of a machine go together
_RESTARTS = 1000  # times that one connection may begin again


class StoredRank(NamedTuple):
    """What an earlier aggregator of this run has stored of a rank."""

    incarnation: int
    sequence: int


_NOTHING = StoredRank(-1, 0)


class Service:
    """Serves ranks and relays.

    world_size: the most ranks that the run may have, or None where nobody has said how many it has.
    counters: `refused` peers, `strangers` (connections that were asked to begin
    again), `foreign` rows (of
    ranks that the connection does not speak for).
    """

    def __init__(
        self,
        aligner: Aligner,
        *,
        run: str,
        world_size: int | None = None,
        send: Callable[[bytes, bytes], None],
        stored: Mapping[int, StoredRank] | None = None,
        patience: Patience = Patience(),  # noqa: B008 (it is immutable)
        advise: Callable[[int, int], messages.Advice] | None = None,
        place: Callable[[int, Mapping[str, int]], None] | None = None,
    ) -> None:
        self.members = Members(patience)
        self.counters: Counter[str] = Counter()
        self._advise = advise
        self._place = place
        self._aligner = aligner
        self._run = run
        self._world_size = world_size
        self._send = send
        self._stored = dict(stored or {})
        self._sessions = Sessions(aligner.table)
        self._strangers = Strangers()
        self._refusals = Refusals()

    @property
    def lost(self) -> int:
        """Blocks that a rank no longer had when they were missed."""
        return self.members.counts["lost"]

    def take(self, identity: bytes, payload: bytes, *, now: float) -> None:
        """Take one payload of one peer."""
        try:
            self._dispatch(identity, wire.decode(payload), now)
        except OutOfStepError:
            self._begin_again(identity)
        except WireError as error:
            self._refuse(identity, str(error))

    def store(self) -> None:
        """Take note that everything in closed steps is on disk."""
        for member in self.members:
            member.ledger.store(self._aligner.closed_until)

    def acknowledge(self) -> None:
        """Tell the ranks, with the next answers, that they may forget what is stored."""
        for member in self.members:
            member.acknowledged = member.ledger.stored

    def lose_silent(self, *, now: float, machine: str, ended: Callable[[int], float | None]) -> list[Member]:
        """Stop waiting for ranks that are gone without a goodbye, and return them."""
        lost = self.members.lose_silent(now=now, machine=machine, ended=ended)
        for member in lost:
            self._aligner.leave(member.hello.rank, member.hello.incarnation)
        for member in lost[:_LOSSES_LOGGED]:
            _LOGGER.warning(
                "rank %d is gone without a goodbye, last heard at step %d (%s)",
                member.hello.rank,
                member.step,
                member.phase,
            )
        if len(lost) > _LOSSES_LOGGED:
            _LOGGER.warning("%d more ranks are gone as well", len(lost) - _LOSSES_LOGGED)
        return lost

    def stored_ranks(self) -> dict[int, StoredRank]:
        """Return what is stored of each rank, for the next aggregator of this run."""
        known = {m.hello.rank: StoredRank(m.hello.incarnation, m.ledger.stored) for m in self.members}
        return {**self._stored, **known}

    def _dispatch(self, identity: bytes, message: messages.Message, now: float) -> None:
        if isinstance(message, messages.Hello):
            self._welcome(identity, message, now)
            return
        if isinstance(message, messages.Join):
            self._sessions.open(identity)
            self._send(identity, wire.encode(messages.Welcome(self._run)))
            return
        session = self._sessions.get(identity)
        if session is None:
            if self._strangers.ask(identity, message):
                self.counters["strangers"] += 1
                self._send(identity, wire.encode(messages.Unknown()))
        elif isinstance(message, messages.Block):
            self._take_block(session, message, now)
        elif isinstance(message, messages.Tags):
            session.extend(message.first, message.tags)
        elif isinstance(message, messages.Heartbeat):
            self._answer(identity, session, message, now)
        elif isinstance(message, messages.Goodbye):
            self._take_goodbye(session, message, now)
        else:
            raise WireError(f"a rank does not send {type(message).__name__}")

    def _begin_again(self, identity: bytes) -> None:
        if self._sessions.restart(identity) > _RESTARTS:
            self._refuse(identity, "it sends blocks without their tag table, again and again")
        else:
            self._send(identity, wire.encode(messages.Unknown()))

    def _welcome(self, identity: bytes, hello: messages.Hello, now: float) -> None:
        if reason := self._objection(hello):
            self._say_refused(identity, hello.rank, hello.incarnation, reason)
            return
        stored = self._stored.get(hello.rank, _NOTHING)
        sequence = stored.sequence if stored.incarnation == hello.incarnation else 0
        self.members.enter(hello, identity, now=now, stored=sequence)
        if self._place is not None:
            self._place(hello.rank, hello.coordinates)
        self._sessions.introduce(identity, hello.rank, hello.incarnation)

    def _objection(self, hello: messages.Hello) -> str:
        """Return why this rank cannot be let in, or ""; it is then expected."""
        rank, known = hello.rank, self.members.newest(hello.rank)
        if hello.run != self._run:
            return f"this aggregator serves run {self._run}, not {hello.run}"
        if self._world_size is not None and hello.world_size > self._world_size:
            return (
                f"this aggregator was told of {self._world_size} ranks, not {hello.world_size} (--world-size)"
            )
        if known is not None and (known.machine, known.pid) != (hello.machine, hello.pid):
            two = f"{_process(known, hello)} and process {hello.pid} both have RANK_ID={rank}"
            if hello.incarnation == known.incarnation:
                return f"rank {rank} is already here: {two}"
            if hello.incarnation < known.incarnation:
                return f"a later start of rank {rank} is already here: {two}"
        stored = self._stored.get(rank, _NOTHING)
        if hello.incarnation < stored.incarnation or not self._aligner.join(
            rank, hello.incarnation, world_size=hello.world_size
        ):
            return f"a later start of rank {rank} is already here"
        return ""

    def _take_block(self, session: Session, block: messages.Block, now: float) -> None:
        tag_ids, order = session.layout(block.tag_ids)
        columns = block.columns if order is None else block.columns[:, :, order]
        wall_times = block.wall_times.tolist()
        for i, (rank, incarnation, sequence) in enumerate(block.rows.tolist()):
            member = self._member(session, rank, incarnation, now)
            if member is None:
                continue
            report = Report(rank, incarnation, block.step, tag_ids, columns[:, i], wall_times[i])
            member.take_step(block.step, now)
            self._add(member, member.ledger.admit(sequence, report), now)

    def _add(self, member: Member, in_order: Iterable[tuple[int, Report]], now: float) -> None:
        for sequence, report in in_order:
            admission = self._aligner.add(report, now=now)
            if admission is Admission.OPEN:
                member.ledger.await_step(sequence, report.step)
            elif admission is Admission.SUPPLEMENT:
                member.ledger.await_step(sequence, report.step + 1)
            else:
                member.ledger.await_step(sequence, -1)

    def _answer(self, identity: bytes, session: Session, heartbeat: messages.Heartbeat, now: float) -> None:
        rows = []
        strange = False
        for beat in heartbeat.beats:
            member = self._member(session, beat.rank, beat.incarnation, now)
            if member is None:
                strange = True  # its hello got lost on the way, or a newer start of it has come elsewhere
            else:
                self._add(member, member.take_beat(beat, now), now)
                received = member.ledger.received
                rows.append((beat.rank, beat.incarnation, beat.sequence, received, member.acknowledged))
        self._send(identity, wire.encode(messages.Pulse(np.array(rows, np.int64).reshape(-1, 5))))
        if strange:
            self._send(identity, wire.encode(messages.Unknown()))
        if self._advise is not None:
            for rank, incarnation, *_ in rows:
                self._send_advice(identity, self._advise(rank, incarnation))

    def _send_advice(self, identity: bytes, advice: messages.Advice) -> None:
        """Send advice where it says something new."""
        member = self.members.get(advice.rank, advice.incarnation)
        if member is not None and advice != member.advice:
            member.advice = advice
            self._send(identity, wire.encode(advice))

    def _take_goodbye(self, session: Session, goodbye: messages.Goodbye, now: float) -> None:
        member = self._member(session, goodbye.rank, goodbye.incarnation, now)
        if member is not None:
            self._add(member, member.take_goodbye(goodbye, now), now)
            self._aligner.leave(goodbye.rank, goodbye.incarnation)

    def _member(self, session: Session, rank: int, incarnation: int, now: float) -> Member | None:
        """Return the member that this connection speaks for; one that was given up is back."""
        member = self.members.get(rank, incarnation) if (rank, incarnation) in session.ranks else None
        if member is None:
            self.counters["foreign"] += 1
            return None
        member.heard = now
        if member.presence is Presence.LOST:
            member.presence = Presence.LIVE
            self._aligner.join(rank, incarnation, world_size=member.hello.world_size)
        return member

    def _refuse(self, identity: bytes, reason: str) -> None:
        """Refuse a connection altogether."""
        self._sessions.forget(identity)
        self._say_refused(identity, messages.NOBODY, 0, reason)

    def _say_refused(self, identity: bytes, rank: int, incarnation: int, reason: str) -> None:
        self.counters["refused"] += 1
        self._refusals.say(rank, reason)
        self._send(identity, wire.encode(messages.Refused(rank, incarnation, reason[:1000])))


def _process(hello: messages.Hello, other: messages.Hello) -> str:
    """Name the process of a rank, for somebody on the machine of the other one."""
    return f"process {hello.pid}" + (" of another machine" if hello.machine != other.machine else "")
