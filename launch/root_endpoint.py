"""Where the root of a job on several nodes listens, and whether it can."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from launch.errors import UsageError

if TYPE_CHECKING:
    from launch.msrun import MsrunLayout


def root_endpoint(layout: MsrunLayout, *, port: int | None, secured: bool) -> str:
    """Return where the root listens for the other nodes; raise UsageError where that is not safe."""
    if not secured:
        raise UsageError(
            f"the command trains on several nodes ({layout.local_worker_num} of {layout.worker_num} ranks here): make "
            "a key with `crossrank keygen FILE`, copy it to every node and give it with --key FILE, or say --insecure"
        )
    chosen = layout.master_port + 1 if port is None else port
    if not 0 < chosen < 65536:
        raise UsageError(f"--port must be from 1 to 65535, not {chosen}")
    host = f"[{layout.master_addr}]" if ":" in layout.master_addr else layout.master_addr
    return f"tcp://{host}:{chosen}"


def listening_endpoint(endpoint: str) -> str:
    """Return the endpoint with a numeric address, as listening needs it.

    Raises UsageError where its host has no address, where that is not one of this machine, or where the port is taken.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        family, kind, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UsageError(
            f"node 0 cannot listen at {endpoint}: {error.strerror}; give the other nodes this machine's "
            "address with --master_addr, or another port with --port"
        ) from None
    return f"tcp://[{address[0]}]:{port}" if family == socket.AF_INET6 else f"tcp://{address[0]}:{port}"
