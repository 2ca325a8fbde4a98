"""One connection as its receiver knows it: the ranks it speaks for, and how its tags map to the run's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankside.errors import WireError
from rankside.wire import Heartbeat

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.tag_table import TagTable
    from rankside.tags import Tag
    from rankside.wire import Message

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


class Session:
    """One connection: the sender's tag table, and how its indices map to the run's."""

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
