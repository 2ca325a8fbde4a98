"""The ranks' processes on this machine: which have ended, and when.

The kernel tells of them in the order in which they ended, at once where `descriptor` is polled. A kernel or a Python
without process descriptors (before Linux 5.3) leaves looking them up now and then, which finds the ends of several
together.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

_LOOK_UP_SECONDS = 1.0  # between two times of looking up those that cannot be watched


class Processes:
    """Watches processes from the first question about them on. descriptor: readable when one of them has ended."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.descriptor = self._epoll.fileno()
        self._watched: dict[int, int] = {}  # the process's number by its descriptor
        self._unwatched: set[int] = set()  # those that run, by number, without a descriptor
        self._next_look_up = 0.0
        self._known: dict[int, float | None] = {}  # when it ended, by its number; None while it runs

    def look(self, *, now: float) -> list[int]:
        """Return those that have ended since the last look, by number. now: seconds of the caller's clock."""
        ended = []
        for descriptor, _ in self._epoll.poll(0):
            ended.append(self._watched.pop(descriptor))
            os.close(descriptor)
        if self._unwatched and now >= self._next_look_up:
            self._next_look_up = now + _LOOK_UP_SECONDS
            gone = {pid for pid in self._unwatched if not runs(pid)}
            self._unwatched -= gone
            ended += gone
        self._known.update(dict.fromkeys(ended, now))
        return ended

    def ended(self, pid: int, *, now: float) -> float | None:
        """Return when the process ended, as far as is known by now, or None while it runs."""
        # Where a number runs of which it is known that it ended, the kernel has given it to another process.
        if pid not in self._known or (self._known[pid] is not None and runs(pid)):
            self._known[pid] = self._watch(pid, now)
        return self._known[pid]

    def close(self) -> None:
        """Watch nothing any more."""
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched.clear()
        self._epoll.close()

    def _watch(self, pid: int, now: float) -> float | None:
        """Return when the process ended, now at the latest, or watch it."""
        if not runs(pid):
            return now
        try:
            descriptor = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._unwatched.add(pid)
        else:
            self._watched[descriptor] = pid
            self._epoll.register(descriptor, select.EPOLLIN)
        return None


def runs(pid: int) -> bool:
    """Return whether a process of this machine still runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The field behind the command, which stands in parentheses: a zombie is dead, its parent has not noticed.
    return state.rpartition(")")[2].split()[0] not in {"Z", "X"}
