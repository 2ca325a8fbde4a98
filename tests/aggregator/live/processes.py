"""Aggregator, relays and ranks as processes of their own, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys

_COMMAND = "import sys; from launch.cli import main; sys.exit(main(sys.argv[1:]))"
_RANK = """
import logging, math, sys, time
from pathlib import Path
from rankside.config import RankConfig
from rankside.recorder import Recorder

rank, world_size, steps = (int(argument) for argument in sys.argv[1:4])
run_dir, endpoint, key, marks = sys.argv[4:]
logging.basicConfig()
config = RankConfig.from_environment(
    {}, rank=rank, world_size=world_size, run_dir=run_dir, endpoint=endpoint, key=key or None
)
recorder = Recorder(config)
recorder.start()
for step in range(1, steps + 1):
    loss = math.nan if (rank, step) == (2, 70) else math.sin(step / 50) + 0.1 * rank
    recorder.log(step, {"loss": loss, "learning-rate": 0.1})
    if step % 50 == 0:
        Path(marks, f"{rank}-{step}").touch()
    time.sleep(0.01)
recorder.finish()
"""


class Processes:
    """Starts them, and ends what is left of them."""

    def __init__(self, folder):
        self.folder = folder
        self.lifeline, self._lifeline_end = os.pipe()
        self._children = []

    def listen(self, *arguments):
        """Start `crossrank serve` or `crossrank relay`; return it, with what it said when it listened."""
        ready, ready_end = os.pipe()
        process = self._start(
            [sys.executable, "-c", _COMMAND, *map(str, arguments), "--ready-fd", str(ready_end),
             "--lifeline-fd", str(self.lifeline)],
            pass_fds=(ready_end, self.lifeline),
        )  # fmt: skip
        os.close(ready_end)
        with os.fdopen(ready) as file:
            process.said = file.readline().split()
        return process

    def rank(self, rank, world_size, *, steps, run_dir, endpoint, key=""):
        """Start a rank that logs so many steps."""
        arguments = (rank, world_size, steps, run_dir, endpoint, key, self.folder)
        return self._start([sys.executable, "-c", _RANK, *map(str, arguments)])

    def has_reached(self, rank, step):
        """Whether a rank has logged a step, one of every fifty."""
        return (self.folder / f"{rank}-{step}").exists()

    def cut_lifeline(self):
        """Say that no rank will come any more."""
        if self._lifeline_end is not None:
            os.close(self._lifeline_end)
            self._lifeline_end = None

    def close(self):
        self.cut_lifeline()
        os.close(self.lifeline)
        for child in self._children:
            child.kill()
            child.wait()

    def log(self, process):
        """What a process has written so far."""
        return process.log.read_text()

    def _start(self, command, **options):
        log = self.folder / f"{len(self._children)}.log"
        with log.open("w") as file:
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options)
        child.log = log
        self._children.append(child)
        return child
