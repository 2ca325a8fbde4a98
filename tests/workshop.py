"""A place in which the installed `crossrank` command runs, which knows every process that came of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CROSSRANK = Path(sys.executable).with_name("crossrank")
_MARK = "CROSSRANK_TEST_MARK"

# Seconds until msrun's scheduler misses a worker: for trainings that fail, which otherwise take half a minute more.
SOON_MISSED = {"MS_NODE_TIMEOUT": "10"}


def wait_until(condition: Callable[[], object], *, seconds: float = 30.0) -> None:
    """Poll until the condition is true; fail when it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.02)


def msrun(ranks: int) -> list[str]:
    """Return the beginning of a command that trains with so many workers on this machine, up to the script."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = [f"--worker_num={ranks}", f"--local_worker_num={ranks}", f"--master_port={port}"]
    return ["msrun", *workers, "--log_dir=log", "--join=True"]


class Workshop:
    """A temporary folder in which crossrank commands are run; all their processes carry one mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sockets = folder / "sockets"
        self.sockets.mkdir()
        self._mark = uuid.uuid4().hex
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("CROSSRANK_", "MS_"))
            },
            _MARK: self._mark,
            "TMPDIR": str(self.sockets),
            "PATH": os.pathsep.join([str(CROSSRANK.parent), os.environ.get("PATH", os.defpath)]),
        }
        self.environment.pop("XDG_RUNTIME_DIR", None)

    def run(self, *arguments: str, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            [CROSSRANK, *arguments],
            cwd=self.folder,
            env={**self.environment, **(more or {})},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        """Start; standard error goes to the file `stderr`."""
        with (self.folder / "stderr").open("w") as stderr:
            return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
                [CROSSRANK, *arguments],
                cwd=self.folder,
                env=self.environment,
                stderr=stderr,
                text=True,
                **{"stdout": subprocess.DEVNULL, **options},
            )

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def script(self, name: str, text: str) -> list[str]:
        """Write a Python program; return the command that runs it."""
        path = self.folder / name
        path.write_text(text)
        return [sys.executable, str(path)]

    def processes(self) -> dict[int, str]:
        """Return the living processes that came of this workshop's commands: pid and command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return found

    def aggregators(self) -> list[int]:
        return [pid for pid, command in self.processes().items() if " serve --run-dir " in command]

    def tree(self) -> set[Path]:
        """Return all that exists in the folder."""
        return set(self.folder.rglob("*"))
