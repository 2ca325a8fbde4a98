"""What the options of an msrun command say about ranks and nodes."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# msrun's own defaults.
_WORKERS = 8
_MASTER_ADDRESS = "127.0.0.1"
_MASTER_PORT = 8118
_NO_NODE_RANK = -1


class MsrunLayout(NamedTuple):
    """Ranks and nodes of one msrun command.

    worker_num: ranks on all nodes. local_worker_num: ranks on this node. master_addr, master_port: of msrun's
    scheduler. node_rank: of this node, or -1 where msrun is to find out.
    """

    worker_num: int = _WORKERS
    local_worker_num: int = _WORKERS
    master_addr: str = _MASTER_ADDRESS
    master_port: int = _MASTER_PORT
    node_rank: int = _NO_NODE_RANK

    @property
    def many_nodes(self) -> bool:
        """Whether other nodes take part."""
        return self.local_worker_num < self.worker_num

    @property
    def is_master(self) -> bool:
        """Whether this node is the one that the others look for."""
        if self.node_rank != _NO_NODE_RANK:
            return self.node_rank == 0
        return _is_local(self.master_addr)


def msrun_layout(command: Sequence[str]) -> MsrunLayout | None:
    """Return what an msrun command says; None for any other command, or where a number is no number."""
    if Path(command[0]).name != "msrun":
        return None
    values: dict[str, str] = {}
    rest = iter(command[1:])
    for word in rest:
        if not word.startswith("--"):
            break
        option, equals, value = word.partition("=")
        values[option[2:]] = value if equals else next(rest, "")
    numbers = {
        name: int(values[name])
        for name in ("worker_num", "local_worker_num", "master_port", "node_rank")
        if values.get(name, "").lstrip("-").isdigit()
    }
    if numbers.get("worker_num", _WORKERS if "worker_num" not in values else 0) < 1:
        return None
    return MsrunLayout(**numbers, master_addr=values.get("master_addr", _MASTER_ADDRESS))


def _is_local(address: str) -> bool:
    """Return whether an address is one of this machine's: whether a socket can be bound to it."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(found[4][0]).is_loopback:
            return True
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.bind((found[4][0], 0))
    except (OSError, ValueError):
        return False
    return True
