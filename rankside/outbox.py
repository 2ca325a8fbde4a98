"""Blocks that the aggregator has not acknowledged yet, in the order of their sequence numbers.

Bounded: when it is full the oldest block is dropped and counted. The rank's own event file still has it, and
the merge is filled from there.
"""

from __future__ import annotations

from collections import deque


class Outbox:
    """Keeps numbered payloads until they are acknowledged, and knows which to send next."""

    def __init__(self, *, limit_bytes: int = 64 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._payloads: deque[bytes] = deque()
        self._bytes = 0
        self.oldest = 1  # sequence of the first payload kept; all before it are acknowledged or dropped
        self._unsent = 1  # sequence of the next payload to send
        self.dropped = 0

    def __len__(self) -> int:
        """Return the number of payloads that are not acknowledged."""
        return len(self._payloads)

    @property
    def next_sequence(self) -> int:
        """The number that the next payload will get."""
        return self.oldest + len(self._payloads)

    @property
    def sent(self) -> int:
        """The highest sequence that was handed out for sending, or 0."""
        return self._unsent - 1

    def append(self, payload: bytes) -> None:
        """Keep a payload under the sequence `next_sequence`."""
        self._payloads.append(payload)
        self._bytes += len(payload)
        while self._bytes > self._limit_bytes and len(self._payloads) > 1:
            self._forget_oldest()
            self.dropped += 1

    def peek(self) -> bytes | None:
        """Return the next payload to send, or None when all are sent."""
        index = self._unsent - self.oldest
        return self._payloads[index] if index < len(self._payloads) else None

    def advance(self) -> None:
        """Note that the payload of `peek` is on its way."""
        self._unsent += 1

    def acknowledge(self, sequence: int) -> None:
        """Forget all payloads up to and including this sequence."""
        while self.oldest <= sequence and self._payloads:
            self._forget_oldest()

    def resend_after(self, sequence: int) -> None:
        """Send again whatever is kept with a higher sequence than this one."""
        self._unsent = min(self._unsent, max(sequence + 1, self.oldest))

    def _forget_oldest(self) -> None:
        self._bytes -= len(self._payloads.popleft())
        self.oldest += 1
        self._unsent = max(self._unsent, self.oldest)
