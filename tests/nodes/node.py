"""One node of a job on two hosts: where it works, and the `crossrank run -- msrun …` that is started there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workshop import CROSSRANK, Workshop

import launch.demo

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from container import Container
    from network import Host

_SCRIPT = Path(launch.demo.__file__).with_name("train.py")
_NODES = 2


class Node:
    """A folder and the crossrank that runs in it; stdout and stderr go to files there."""

    def __init__(self, host: Host | Container, folder: Path, rank: int) -> None:
        folder.mkdir()
        self.host = host
        self.workshop = Workshop(folder)
        self.logdir = folder / "runs"
        self._rank = rank
        self._process: subprocess.Popen[bytes] | None = None

    def train(self, *options: str, master: str, steps: int) -> None:
        """Start this node's part of a training with one worker a node. options: of `crossrank run`."""
        quiet = ["--join=True", f"--log_dir={self.workshop.folder / 'msrun'}", "--tail_worker_log=0"]
        self._start(options, ["msrun", *self._layout(master), *quiet, str(_SCRIPT), f"--steps={steps}"])

    def stand_in(self, body: str, *options: str, master: str) -> None:
        """Start a shell script in place of msrun, with msrun's options. options: of `crossrank run`."""
        program = self.workshop.folder / "msrun"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o700)
        self._start(options, [str(program), *self._layout(master)])

    def _layout(self, master: str) -> list[str]:
        ranks = [f"--worker_num={_NODES}", "--local_worker_num=1", f"--node_rank={self._rank}"]
        return [*ranks, f"--master_addr={master}", "--master_port=8118"]

    def _start(self, options: Sequence[str], command: Sequence[str]) -> None:
        with self._path("stdout").open("w") as stdout, self._path("stderr").open("w") as stderr:
            self._process = self.host.start(
                [str(CROSSRANK), "run", "--logdir", str(self.logdir), *options, "--", *command],
                folder=self.workshop.folder,
                environment={**self.workshop.environment, "GLOG_v": "3"},
                stdout=stdout,
                stderr=stderr,
            )

    def wait(self) -> int:
        """Return the exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait(100)

    @property
    def stdout(self) -> str:
        return self._path("stdout").read_text()

    @property
    def stderr(self) -> str:
        return self._path("stderr").read_text()

    @property
    def run_dir(self) -> Path:
        """The folder of the only run."""
        (folder,) = self.logdir.iterdir()
        return folder

    def relays(self) -> list[int]:
        return [pid for pid, command in self.workshop.processes().items() if " relay --bind " in command]

    def _path(self, name: str) -> Path:
        return self.workshop.folder / name
