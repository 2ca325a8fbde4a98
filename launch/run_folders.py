"""Makes the run folder and the private folder of the socket, and takes away what it made when that fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from launch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The kernel's limit for the path of a Unix socket, without the closing NUL.
_SOCKET_PATH_LIMIT_BYTES = 107
_SOCKET_NAME = "aggregator.sock"


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
    folder = _private_folder()
    try:
        yield f"ipc://{folder / _SOCKET_NAME}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _private_folder() -> Path:
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - made 0700
        if not base:
            continue
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="crossrank-", dir=base))
            if len(os.fsencode(folder / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT_BYTES:
                return folder
            folder.rmdir()
    raise UsageError(
        "found no folder for the aggregator's socket; set TMPDIR to a writable one with a short path"
    )
