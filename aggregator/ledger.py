"""Which of a rank's numbered blocks have arrived, and which of them are safely stored: pure.

Blocks are handed out in the order of their numbers, whatever the order in which they came. One that came ahead
of a missing one is kept for a while; what is not kept counts as not received, and the rank sends it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggregator.align import Report

_AHEAD_LIMIT = 1000  # blocks kept behind a missing one


class Ledger:
    """The account of one incarnation of one rank.

    received: the highest sequence up to which nothing is missing. stored: the highest up to which everything is
    merged and on disk. duplicates: blocks that came again. lost: blocks that the rank no longer has.
    """

    def __init__(self, *, stored: int = 0) -> None:
        self.received = stored
        self.stored = stored
        self.duplicates = 0
        self.lost = 0
        self._ahead: dict[int, Report] = {}
        self._pending: dict[int, int] = {}  # sequence: step with whose closing it is merged

    def admit(self, sequence: int, report: Report) -> list[tuple[int, Report]]:
        """Take a block; return the blocks that are now in order, with their sequences."""
        if sequence == self.received + 1 and not self._ahead:
            self.received = sequence
            return [(sequence, report)]
        if sequence <= self.received or sequence in self._ahead:
            self.duplicates += 1
            return []
        if sequence > self.received + 1 and len(self._ahead) >= _AHEAD_LIMIT:
            return []
        self._ahead[sequence] = report
        return self._take_in_order()

    def await_step(self, sequence: int, step: int) -> None:
        """Note that the block is merged once this step has closed."""
        self._pending[sequence] = step

    def forget_before(self, oldest: int) -> list[tuple[int, Report]]:
        """Take note that the rank keeps no block before this sequence: what has not come is lost.

        Returns the blocks for which nothing before them is waited for any more, with their sequences.
        """
        missing = oldest - 1 - self.received
        if missing <= 0:
            return []
        early = [
            (sequence, self._ahead.pop(sequence)) for sequence in sorted(self._ahead) if sequence < oldest
        ]
        self.lost += missing - len(early)
        self.received = oldest - 1
        return early + self._take_in_order()

    def store(self, closed_until: int) -> None:
        """Take note that every step up to this one is on disk."""
        # One that has not come is no longer kept by the rank if `received` is beyond it: nothing to wait for.
        while (
            self.stored < self.received and self._pending.get(self.stored + 1, closed_until) <= closed_until
        ):
            self.stored += 1
            self._pending.pop(self.stored, None)

    def _take_in_order(self) -> list[tuple[int, Report]]:
        in_order = []
        while self.received + 1 in self._ahead:
            self.received += 1
            in_order.append((self.received, self._ahead.pop(self.received)))
        return in_order
