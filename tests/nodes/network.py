"""Two hosts on one machine: network namespaces with a host name each, joined by one link that can be cut."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

_SHARED_PREFIX = 24


class Host(NamedTuple):
    """One end of the link. device: the name of its network interface."""

    namespace: str
    address: str
    device: str
    name: str

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs a command on this host."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *command]

    def start(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command in a folder."""
        return subprocess.Popen(self.inside(*command), cwd=folder, env=environment, **options)


class Network:
    """The two hosts and their link; `close` takes everything away."""

    def __init__(self) -> None:
        """Skip the test where this is not permitted."""
        unique = f"xr{os.getpid()}"
        self.hosts = (
            Host(f"{unique}-0", "10.77.0.1", f"{unique}a", "crossrank-node-0"),
            Host(f"{unique}-1", "10.77.0.2", f"{unique}b", "crossrank-node-1"),
        )
        self._made: list[Host] = []
        try:
            for host in self.hosts:
                _ip("netns", "add", host.namespace)
                self._made.append(host)
            first, second = self.hosts
            pair = ["name", first.device, "netns", first.namespace, "type", "veth"]
            _ip("link", "add", *pair, "peer", "name", second.device, "netns", second.namespace)
            for host in self.hosts:
                _ip("-n", host.namespace, "link", "set", "lo", "up")
                address = f"{host.address}/{_SHARED_PREFIX}"
                _ip("-n", host.namespace, "address", "add", address, "dev", host.device)
                _ip("-n", host.namespace, "link", "set", host.device, "up")
            subprocess.run(self.hosts[1].inside("true"), check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            reason = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"no network namespaces here: {reason.strip()}")

    def cut(self) -> None:
        """Let nothing pass."""
        self._set("down")

    def restore(self) -> None:
        """Let everything pass again."""
        self._set("up")

    def close(self) -> None:
        """Take the hosts away, and the link with them."""
        while self._made:
            _ip("netns", "delete", self._made.pop().namespace)

    def _set(self, state: str) -> None:
        host = self.hosts[1]
        _ip("-n", host.namespace, "link", "set", host.device, state)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)
