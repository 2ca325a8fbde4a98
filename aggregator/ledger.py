"""Which of a rank's numbered blocks have arrived, and which of them are safely stored: pure."""

from __future__ import annotations


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
        self._beyond: set[int] = set()
        self._pending: dict[int, int] = {}  # sequence: step with whose closing it is merged

    def admit(self, sequence: int) -> bool:
        """Take note of a block; False where it has come before."""
        if sequence <= self.received or sequence in self._beyond:
            self.duplicates += 1
            return False
        self._beyond.add(sequence)
        self._close_gap()
        return True

    def await_step(self, sequence: int, step: int) -> None:
        """Note that the block is merged once this step has closed."""
        self._pending[sequence] = step

    def forget_before(self, oldest: int) -> None:
        """Take note that the rank keeps no block before this sequence: what has not come is lost."""
        missing = oldest - 1 - self.received
        if missing > 0:
            self.lost += missing - sum(1 for sequence in self._beyond if sequence < oldest)
            self._beyond = {sequence for sequence in self._beyond if sequence >= oldest}
            self.received = oldest - 1
            self._close_gap()

    def store(self, closed_until: int) -> None:
        """Take note that every step up to this one is on disk."""
        # One that has not come is no longer kept by the rank if `received` is beyond it: nothing to wait for.
        while (
            self.stored < self.received and self._pending.get(self.stored + 1, closed_until) <= closed_until
        ):
            self.stored += 1
            self._pending.pop(self.stored, None)

    def _close_gap(self) -> None:
        while self.received + 1 in self._beyond:
            self.received += 1
            self._beyond.remove(self.received)
