"""The ranks of a run as the aggregator knows them: who they are, when they were last heard, what they do.

Pure: the clock's value is brought by the caller, and when a process has ended is asked of a function.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from aggregator.ledger import Ledger
from rankside import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aggregator.align import Report
    from rankside.messages import Advice, Beat, Goodbye, Hello


class Patience(NamedTuple):
    """How long a rank may be silent.

    suspect_seconds: a rank on this machine whose process has ended is then given up; what it sent may still have
    been on its way. lost_seconds: one elsewhere is then given up; longer, since a busy interpreter can hold a
    heartbeat back for seconds.
    """

    suspect_seconds: float = 3.0
    lost_seconds: float = 15.0


class Presence(Enum):
    """Whether a rank can still be expected to report."""

    LIVE = "live"
    LEFT = "left"
    LOST = "lost"


@dataclass(slots=True)
class Member:
    """One incarnation of one rank.

    heard: when its last message came, in seconds of the service's clock. step, phase, phase_since: from its
    heartbeats. dropped, unwritten: how much it could not keep, likewise. acknowledged: the highest sequence that
    the rank may forget. advice: what it was last advised. failed: what ended its training, as it said at its
    goodbye, or "". ended: when its process ended or its training failed, as far as is known.
    """

    hello: Hello
    identity: bytes
    ledger: Ledger
    heard: float
    step: int = 0
    phase: str = "starting"
    phase_since: float = 0.0
    dropped: int = 0
    unwritten: int = 0
    acknowledged: int = 0
    advice: Advice | None = None
    presence: Presence = Presence.LIVE
    failed: str = ""
    ended: float | None = None

    def take_beat(self, beat: Beat, now: float) -> list[tuple[int, Report]]:
        """Take note of a heartbeat; return the blocks that wait for no missing one any more."""
        self.step = beat.step
        self.phase = beat.phase
        self.phase_since = now - beat.seconds
        self.dropped = beat.dropped
        self.unwritten = beat.unwritten
        return self.ledger.forget_before(beat.oldest)

    def take_step(self, step: int, now: float) -> None:
        """Take note that the rank has finished a step, which is news that its last heartbeat cannot have had."""
        if step > self.step:
            self.step = step
            self.phase_since = now

    @property
    def counts(self) -> Counter[str]:
        """What did not go the straight way."""
        return Counter(
            duplicates=self.ledger.duplicates,
            lost=self.ledger.lost,
            dropped=self.dropped,
            unwritten=self.unwritten,
        )

    def take_goodbye(self, goodbye: Goodbye, now: float) -> list[tuple[int, Report]]:
        """Take note that the rank leaves; blocks of it that have not come are lost. Returns what waited for them."""
        gone = goodbye.reason == messages.GONE
        self.presence = Presence.LOST if gone else Presence.LEFT
        self.failed = "" if gone else goodbye.reason
        self.ended = now if goodbye.reason else None
        return self.ledger.forget_before(goodbye.sequence + 1)


class Members:
    """All ranks that have said hello, each in its newest incarnation.

    abandoned: incarnations that a newer one has replaced, and that had not said goodbye.
    """

    def __init__(self, patience: Patience = Patience()) -> None:  # noqa: B008 (it is immutable)
        self.abandoned = 0
        self._replaced: Counter[str] = Counter()
        self._patience = patience
        self._members: dict[int, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        """Go through the members in the order in which their ranks first came."""
        return iter(self._members.values())

    def __len__(self) -> int:
        """Return how many ranks have said hello."""
        return len(self._members)

    def get(self, rank: int, incarnation: int) -> Member | None:
        """Return the member if this is its newest incarnation."""
        member = self._members.get(rank)
        return member if member is not None and member.hello.incarnation == incarnation else None

    def newest(self, rank: int) -> Hello | None:
        """Return how the newest incarnation of the rank introduced itself, or None where none has come."""
        member = self._members.get(rank)
        return member.hello if member is not None else None

    def enter(self, hello: Hello, identity: bytes, *, now: float, stored: int = 0) -> Member:
        """Take in a rank: a new one, a newer incarnation, or the same one on a new connection."""
        member = self.get(hello.rank, hello.incarnation)
        if member is None:
            older = self._members.get(hello.rank)
            if older is not None:
                self.abandoned += older.presence is not Presence.LEFT
                self._replaced.update(older.counts)
            member = self._members[hello.rank] = Member(hello, identity, Ledger(stored=stored), now)
        member.identity = identity
        member.heard = now
        member.presence = Presence.LIVE
        return member

    def lose_silent(self, *, now: float, machine: str, ended: Callable[[int], float | None]) -> list[Member]:
        """Mark and return those that are gone without a goodbye.

        machine: this one's name; `ended` tells when a process of it ended. Those whose process has ended are given
        up together: msrun ends the others within a second, and who was heard last says nothing about who died
        first.
        """
        live = [member for member in self if member.presence is Presence.LIVE]
        for member in live:
            member.ended = ended(member.hello.pid) if member.hello.machine == machine else None
        dead = [member for member in live if member.ended is not None]
        if all(now - member.heard < self._patience.suspect_seconds for member in dead):
            dead = []
        elsewhere = [member for member in live if member.hello.machine != machine]
        silent = [member for member in elsewhere if now - member.heard >= self._patience.lost_seconds]
        lost = dead + silent
        for member in lost:
            member.presence = Presence.LOST
        return lost

    @property
    def counts(self) -> Counter[str]:
        """What did not go the straight way, over all incarnations.

        duplicates: blocks that came again. lost: blocks that a rank no longer had when they were missed. dropped:
        logged entries that a rank's full queue did not take. unwritten: events that a rank's disk did not take.
        """
        counts = Counter(self._replaced)
        for member in self:
            counts.update(member.counts)
        return counts

    @property
    def all_gone(self) -> bool:
        """Whether nobody is left who could report."""
        return all(member.presence is not Presence.LIVE for member in self)
