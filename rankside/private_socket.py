"""The socket that one user's processes of one machine share: made in a folder that nobody else can enter."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from rankside.endpoints import IPC_PATH_LIMIT_BYTES
from rankside.errors import TransportError

_PREFIX = "crossrank-"
_SOCKET_NAME = "aggregator.sock"


def make_private_endpoint() -> str:
    """Return an `ipc://` endpoint in a new folder of mode 0700; raise `TransportError` where none can be made."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - made 0700
        if not base:
            continue
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            if len(os.fsencode(folder / _SOCKET_NAME)) <= IPC_PATH_LIMIT_BYTES:
                return f"ipc://{folder / _SOCKET_NAME}"
            folder.rmdir()
    raise TransportError(
        "found no folder for the aggregator's socket; set TMPDIR to a writable one with a short path"
    )


def remove_private_endpoint(endpoint: str) -> None:
    """Remove the socket and its folder, if `make_private_endpoint` made it and nothing else is in it."""
    scheme, _, address = endpoint.partition("://")
    path = Path(address)
    if scheme == "ipc" and path.name == _SOCKET_NAME and path.parent.name.startswith(_PREFIX):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()
