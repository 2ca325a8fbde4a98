"""Tells which processes can look each other up by their number."""

from __future__ import annotations

import socket
from pathlib import Path


def machine_name() -> str:
    """Return what the processes of one machine and one PID namespace have in common, and no others.

    Host names do not do: containers may share one, and so may machines that were set up from one image.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
