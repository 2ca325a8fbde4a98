"""Calls back when this process ends in an orderly way, before a process of its own is waited for.

A child that `multiprocessing` has forked, in which a script may well train, ends without `atexit`; there
`multiprocessing`'s own way is the only one. Both are used, and the callback must bear being called twice.
"""

from __future__ import annotations

import atexit
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ProcessEnd:
    """Calls `callback` at the end of the process, unless it is cancelled before."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        atexit.register(callback)
        self._finalize = Finalize(None, callback, exitpriority=0)

    def cancel(self) -> None:
        """Call back no more."""
        atexit.unregister(self._callback)
        self._finalize.cancel()
