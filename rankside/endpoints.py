"""Which endpoints may be used, and what is wrong with the others."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from typing import TYPE_CHECKING

from rankside.errors import TransportError

if TYPE_CHECKING:
    from pathlib import Path

IPC_PATH_LIMIT_BYTES = 107  # the kernel's limit on the path of a Unix socket


def check_endpoint(endpoint: str, *, secured: bool = False) -> None:
    """Raise `TransportError` where this is no endpoint that may be used.

    secured: there are keys for it, or the user has asked for plain TCP by name.
    """
    scheme, separator, address = endpoint.partition("://")
    if not separator or scheme not in {"ipc", "tcp"} or not address:
        raise TransportError(f"endpoint {endpoint!r}: ipc://<path> or tcp://<host>:<port> is expected")
    if scheme == "ipc":
        if address[0] in "@*":
            raise TransportError(
                f"endpoint {endpoint!r}: a path is expected; nobody can be kept out of an abstract socket"
            )
        if len(os.fsencode(address)) > IPC_PATH_LIMIT_BYTES:
            raise TransportError(
                f"endpoint {endpoint!r}: the path is longer than the {IPC_PATH_LIMIT_BYTES} bytes that the system "
                "allows for a socket; choose a shorter folder"
            )
        return
    host, separator, port = address.rpartition(":")
    if not separator or (not (port.isdecimal() and int(port) < 65536) and port != "*"):
        raise TransportError(f"endpoint {endpoint!r}: tcp://<host>:<port> is expected")
    if not secured and not _is_loopback(host.strip("[]")):
        raise TransportError(
            f"endpoint {endpoint!r}: without a key, TCP is accepted on the loopback interface only (127.0.0.1, "
            "::1); make one with `crossrank keygen` and give it with --key on every machine"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_socket_folder(folder: Path) -> None:
    """Raise `TransportError` where others than the owner could reach a socket in this folder."""
    try:
        status = folder.stat()
    except OSError as error:
        raise TransportError(f"socket folder {folder}: {error.strerror}") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise TransportError(
            f"socket folder {folder} must belong to you with mode 0700: others could connect"
        )


def check_socket_free(path: Path) -> None:
    """Raise `TransportError` where somebody listens on this Unix socket: binding would silently take it over."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            pass  # its queue of connections is full: somebody is there
        except OSError:
            return
    raise TransportError(
        f"cannot listen on ipc://{path}: another aggregator or relay listens there; end it, or choose another --bind"
    )
