"""Makes events that take long, such as the graph of a large network, a little at a time between other work."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class SlowEvents:
    """Events that are not made yet, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Iterable[bytes]]] = deque()
        self._pieces: Iterator[bytes] | None = None
        self._made = bytearray()

    def __len__(self) -> int:
        """Return how many are not made yet, the one that is being made included."""
        return len(self._waiting) + (self._pieces is not None)

    def add(self, make: Callable[[], Iterable[bytes]]) -> None:
        """Take an event: what yields its pieces, some of which may be empty."""
        self._waiting.append(make)

    def work(self) -> bytes | None:
        """Make one piece; return the event that it has completed, if it has.

        Raises what the maker raises; its event is then given up.
        """
        pieces, self._pieces = self._pieces, None
        if pieces is None:
            pieces = iter(self._waiting.popleft()())
            self._made.clear()
        piece = next(pieces, None)
        if piece is None:
            return bytes(self._made)
        self._made += piece
        self._pieces = pieces
        return None
