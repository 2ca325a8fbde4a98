"""Says in the log who was refused and why: each rank and reason once, and no more than so many in all."""

from __future__ import annotations

import logging

from rankside import messages

_LOGGER = logging.getLogger("crossrank")
_LIMIT = 100  # so that a peer which finds ever new reasons does not fill the log


class Refusals:
    """What has been said so far; counting is left to the caller."""

    def __init__(self) -> None:
        self._said: set[tuple[int, str]] = set()

    def say(self, rank: int, reason: str) -> None:
        """Say a refusal where it is new. rank: NOBODY where the peer has not said who it is."""
        if (rank, reason) in self._said or len(self._said) >= _LIMIT:
            return
        self._said.add((rank, reason))
        _LOGGER.warning("refused %s: %s", "a peer" if rank == messages.NOBODY else f"rank {rank}", reason)
        if len(self._said) == _LIMIT:
            _LOGGER.warning("further refusals are only counted")
