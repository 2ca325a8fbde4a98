"""What ties an aggregator or a relay to whoever started it, and to the ranks' processes on this machine."""

from __future__ import annotations

import os
from pathlib import Path


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


def runs(pid: int) -> bool:
    """Return whether a process of this machine still runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The field behind the command, which stands in parentheses: a zombie is dead, its parent has not noticed.
    return state.rpartition(")")[2].split()[0] not in {"Z", "X"}
