"""Starts, adopts and reaps processes.

The launcher becomes a child subreaper where the system has that (Linux): a process whose parent ends becomes
the launcher's own child, so that workers which msrun leaves behind can be waited for and signalled. Programs
are started with no signal blocked, and inherit no file descriptor but those named.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PR_SET_CHILD_SUBREAPER = 36


class Ended(NamedTuple):
    """A child that has ended. code: its exit code, or 128 plus the number of the signal that killed it."""

    pid: int
    code: int

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.code > 128:
            try:
                return f"was killed by {signal.Signals(self.code - 128).name}"
            except ValueError:
                pass
        return f"ended with exit code {self.code}"


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process; return whether the system can do that."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def start(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    new_session: bool = False,
    inherit_fds: Sequence[int] = (),
) -> int:
    """Start a program with all signals unblocked; return its pid.

    argv[0] is a path. new_session: detach it from the terminal, so that Ctrl-C does not reach it.
    Raises OSError when the program cannot be started.
    """
    for fd in inherit_fds:
        os.set_inheritable(fd, True)  # noqa: FBT003
    try:
        return os.posix_spawn(
            argv[0],
            list(argv),
            environment,
            setsid=new_session,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE,),
        )
    finally:
        for fd in inherit_fds:
            os.set_inheritable(fd, False)  # noqa: FBT003


def reap() -> Iterator[Ended]:
    """Yield every child that has ended and was not yielded before; never waits."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        yield Ended(pid, code if code >= 0 else 128 - code)


def children() -> set[int]:
    """Return the pids of this process's living children, adopted ones included; empty without /proc."""
    parent = os.getpid()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        status = _read(folder / "stat")
        # The name, in parentheses, may hold anything; what follows is: state, parent's pid, …
        fields = status.rpartition(")")[2].split()
        if len(fields) > 1 and int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(folder.name))
    return found


def program_name(pid: int) -> str:
    """Return the short name of a process, empty when it is gone."""
    return _read(Path("/proc") / str(pid) / "comm").strip()


def send(pid: int, signal_number: int) -> None:
    """Send a signal; a process that is already gone, or is no longer ours to signal, is no error."""
    try:
        os.kill(pid, signal_number)
    except (ProcessLookupError, PermissionError):
        return


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
