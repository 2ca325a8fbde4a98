"""Makes the run folder and lends the private socket, and takes away what it made when that fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from launch.errors import UsageError
from rankside.errors import TransportError
from rankside.private_socket import make_private_endpoint, remove_private_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def make_run_dir(logdir: Path, run_name: str, *, name_is_fixed: bool) -> Path:
    """Make and return the run's folder.

    name_is_fixed: an existing folder is continued, as a restarted training wants; else a number is appended
    to the name until nobody has it. Raises UsageError, having removed every folder it made.
    """
    made: list[Path] = []
    try:
        for parent in reversed([logdir, *logdir.parents]):
            if not parent.is_dir():
                parent.mkdir(exist_ok=True)
                made.append(parent)
        if name_is_fixed:
            run_dir = logdir / run_name
            run_dir.mkdir(exist_ok=True)
            return run_dir
        for number in count(1):
            run_dir = logdir / (run_name if number == 1 else f"{run_name}-{number}")
            with contextlib.suppress(FileExistsError):
                run_dir.mkdir()
                return run_dir
    except OSError as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise UsageError(f"cannot make the run folder {logdir / run_name}: {error.strerror}") from None
    raise AssertionError


def lock_run_dir(run_dir: Path) -> int:
    """Claim the run's folder; return a descriptor that holds the claim until its last copy is closed.

    Raises UsageError when another run of the same name is still going on.
    """
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"the run {run_dir} is still going on; choose another --run-name") from None
    except OSError:
        # A file system without locks: then nothing is known about others.
        return descriptor
    return descriptor


@contextmanager
def private_endpoint() -> Iterator[str]:
    """Yield an `ipc://` endpoint in a new folder that only this user can enter; remove both at the end."""
    try:
        endpoint = make_private_endpoint()
    except TransportError as error:
        raise UsageError(str(error)) from None
    try:
        yield endpoint
    finally:
        remove_private_endpoint(endpoint)
