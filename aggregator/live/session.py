"""Connections as their receiver knows them: the ranks they speak for, and how their tags map to the run's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rankside.errors import WireError
from rankside.messages import TAG_LIMIT, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from aggregator.tag_table import TagTable
    from rankside.messages import Message
    from rankside.tags import Tag

    Int64Array = npt.NDArray[np.int64]


_REMEMBERED = 100_000


class OutOfStepError(Exception):
    """A message builds on an earlier one that did not arrive: the peer has to begin again."""


class Strangers:
    """Connections that have not opened as they should: each is asked once to begin again, and at its heartbeats.

    More would have it begin again for every message that was already on its way.
    """

    def __init__(self) -> None:
        self._asked: set[bytes] = set()

    def ask(self, identity: bytes, message: Message) -> bool:
        """Return whether to ask the sender of this message."""
        if identity in self._asked and not isinstance(message, Heartbeat):
            return False
        if len(self._asked) >= _REMEMBERED:
            self._asked.clear()
        self._asked.add(identity)
        return True

    def forget(self, identity: bytes) -> None:
        """Ask this connection again at the next occasion."""
        self._asked.discard(identity)


class Sessions:
    """The connections that have opened. One goes when the last of its ranks has come on another one."""

    def __init__(self, table: TagTable) -> None:
        self._table = table
        self._sessions: dict[bytes, Session] = {}
        self._homes: dict[int, tuple[int, bytes]] = {}
        self._restarts: Counter[bytes] = Counter()

    def __iter__(self) -> Iterator[bytes]:
        """Go through the identities of the connections, which may be forgotten meanwhile."""
        return iter([*self._sessions])

    def __len__(self) -> int:
        """Return how many connections have opened."""
        return len(self._sessions)

    def get(self, identity: bytes) -> Session | None:
        """Return the connection, or None where it has not opened."""
        return self._sessions.get(identity)

    def open(self, identity: bytes) -> None:
        """Begin a connection anew, without any rank yet."""
        self._sessions[identity] = Session(self._table)

    def introduce(self, identity: bytes, rank: int, incarnation: int) -> None:
        """Have the connection speak for a rank, and no other one for it or for older starts of it."""
        session = self._sessions.setdefault(identity, Session(self._table))
        session.ranks.add((rank, incarnation))
        known, home = self._homes.get(rank, (incarnation, identity))
        if known <= incarnation:
            self._homes[rank] = incarnation, identity
            if (known, home) != (incarnation, identity):
                self._leave(home, (rank, known))

    def forget(self, identity: bytes) -> None:
        """Take the connection for one that has not opened."""
        self._sessions.pop(identity, None)

    def restart(self, identity: bytes) -> int:
        """Forget the connection, which has to begin again; return how often it had to."""
        self.forget(identity)
        if len(self._restarts) >= _REMEMBERED:
            self._restarts.clear()
        self._restarts[identity] += 1
        return self._restarts[identity]

    def _leave(self, identity: bytes, speaker: tuple[int, int]) -> None:
        session = self._sessions.get(identity)
        if session is not None:
            session.ranks.discard(speaker)
            if not session.ranks:
                self.forget(identity)
                self._restarts.pop(identity, None)


class Session:
    """One connection: the sender's tag table, and how its indices map to the run's.

    ranks: those that it speaks for, each with its incarnation.
    """

    def __init__(self, table: TagTable) -> None:
        self.ranks: set[tuple[int, int]] = set()
        self._table = table
        self._tags: list[Tag] = []
        self._run_ids = np.empty(0, np.int64)
        self._layouts: dict[bytes, tuple[Int64Array, Int64Array | None]] = {}

    def extend(self, first: int, tags: tuple[Tag, ...]) -> None:
        """Take entries of the sender's tag table."""
        if first > len(self._tags):
            raise OutOfStepError
        if self._table.size_with(tags) > TAG_LIMIT:
            raise WireError(f"with its tags the run would have more than {TAG_LIMIT}")
        self._tags[first:] = tags
        self._run_ids = self._table.add(self._tags)
        self._layouts.clear()

    def layout(self, tag_ids: Int64Array) -> tuple[Int64Array, Int64Array | None]:
        """Return the run's ids for the sender's, ascending, and the order of columns that makes them so."""
        key = tag_ids.tobytes()
        if key not in self._layouts:
            if tag_ids[-1] >= len(self._run_ids):
                raise OutOfStepError
            ids = self._run_ids[tag_ids]
            order = np.argsort(ids)
            if np.any(np.diff(ids[order]) == 0):
                raise WireError("a block names a tag twice")
            ascending = bool(np.all(order == np.arange(len(order))))
            self._layouts[key] = self._table.intern(ids[order]), None if ascending else order
        return self._layouts[key]
