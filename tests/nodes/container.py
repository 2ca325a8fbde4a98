"""A host as a container of an OCI runtime: its own processes, host name and file system, in a network that is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from network import Host

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
_EMPTY = ("/dev", "/dev/shm", "/tmp")  # noqa: S108 (they are the container's own)
_INSTALLED = (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))


class Container:
    """Runs one command at a time as process 1 of a container; what is installed here is there, but read-only."""

    def __init__(self, host: Host, bundle: Path) -> None:
        """Skip the test where no container runs. bundle: a folder for what the runtime wants to know."""
        self.address = host.address
        self._host = host
        self._bundle = bundle
        (bundle / "rootfs").mkdir(parents=True)
        try:
            tried = self.start(["true"], folder=bundle, environment=os.environ, stderr=subprocess.PIPE)
            _, said = tried.communicate(timeout=30)
        except OSError as error:
            pytest.skip(f"no container runtime here: {error}")
        if tried.returncode:
            pytest.skip(f"no containers here: {said.decode().strip()}")

    def start(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command; of what can be written on this machine it sees the folder, in which it runs, and no more."""
        self._configure(command, folder, environment)
        return subprocess.Popen(["runc", "run", "--bundle", self._bundle, self._host.namespace], **options)

    def signal(self, name: str) -> None:
        """Send a signal to process 1."""
        subprocess.run(["runc", "kill", self._host.namespace, name], check=True, timeout=30)

    def close(self) -> None:
        """Take away what is left of it."""
        subprocess.run(
            ["runc", "delete", "--force", self._host.namespace], check=False, capture_output=True, timeout=30
        )

    def _configure(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        own = [
            {"type": "proc", "source": "proc", "destination": "/proc"},
            *({"type": "tmpfs", "source": "tmpfs", "destination": path} for path in _EMPTY),
        ]
        shared = dict.fromkeys([*_SYSTEM, *_INSTALLED], "ro") | {str(folder): "rw"}
        bound = [
            {
                "type": "bind",
                "source": os.path.realpath(path),
                "destination": path,
                "options": ["rbind", access],
            }
            for path, access in shared.items()
            if Path(path).exists()
        ]
        namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
        namespaces.append({"type": "network", "path": f"/run/netns/{self._host.namespace}"})
        configuration = {
            "ociVersion": "1.0.0",
            "hostname": self._host.name,
            "root": {"path": "rootfs"},
            "mounts": own + bound,
            "linux": {"namespaces": namespaces},
            "process": {
                "user": {"uid": 0, "gid": 0},
                "cwd": str(folder),
                "args": list(command),
                "env": [f"{name}={value}" for name, value in environment.items()],
            },
        }
        (self._bundle / "config.json").write_text(json.dumps(configuration))
