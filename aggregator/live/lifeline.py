"""What ties an aggregator or a relay to whoever started it."""

from __future__ import annotations

import os


class Lifeline:
    """The reading end of a pipe whose other end the launcher holds; None where nobody holds one.

    cut: whether the other end has closed, by intent or by death: no further rank will come.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._cut = False
        if descriptor is not None:
            os.set_blocking(descriptor, False)

    @property
    def cut(self) -> bool:
        """Whether the other end has closed."""
        if self._descriptor is not None and not self._cut:
            try:
                self._cut = os.read(self._descriptor, 1) == b""
            except BlockingIOError:
                return False
        return self._cut
