"""Whether a real training step on CPU is slower with `RankMonitor()` and an aggregator that is frozen all the while.

    python tests/benchmarks/frozen_aggregator.py [--rounds 30] [--steps 60] [--batch 1024] [--width 224]

Trains the same network without a monitor, with one whose aggregator was stopped by SIGSTOP before the first step
and is continued after the last one, with one whose aggregator works, and without again, in turns of a few dozen
steps in one process, in an order that rotates. Printed are the paired ratios of the turns' median steps: the
median over the rounds with the quartiles, of a frozen and of a working aggregator, and, of the two trainings
without a monitor, the noise; and how long a frozen aggregator held up the end of training.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import mindspore
import numpy as np
from paired_training import Material, Trainee, add_size, take_turns

from rankside import RankMonitor
from rankside.config import ENDPOINT_VARIABLE, RUN_DIR_VARIABLE

KINDS = ("none", "frozen", "working", "none again")
NAMES = {"frozen": "a frozen aggregator", "working": "a working one", "none again": "no monitor, again"}


@contextlib.contextmanager
def serving(folder: Path, *, frozen: bool):
    """Have an aggregator, which the next monitor finds; a frozen one is continued at the end."""
    endpoint, run_dir = f"ipc://{folder}/aggregator", folder / "run"
    ready, told = os.pipe()
    lifeline, held = os.pipe()
    options = [
        "--run-dir",
        run_dir,
        "--bind",
        endpoint,
        "--ready-fd",
        str(told),
        "--lifeline-fd",
        str(lifeline),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "launch.cli", "serve", *options],
        pass_fds=(told, lifeline),
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(told)
        if not os.read(ready, 100):
            raise RuntimeError("the aggregator did not start")
        if frozen:
            process.send_signal(signal.SIGSTOP)
        os.environ.update({RUN_DIR_VARIABLE: str(run_dir), ENDPOINT_VARIABLE: endpoint})
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)
            os.close(held)
            if process.wait(60):
                raise RuntimeError("the aggregator did not end in order")
    os.close(ready)
    os.close(lifeline)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_size(parser, rounds=30, steps=60, batch=1024, width=224)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    trainees, monitors = {}, {}
    material = Material(arguments)
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            if kind in {"frozen", "working"}:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                stack.enter_context(serving(folder, frozen=kind == "frozen"))
                monitors[kind] = RankMonitor(log_every=0)
            callbacks = [monitors[kind]] if kind in monitors else []
            trainees[kind] = Trainee(partial(list, callbacks), material)
            trainees[kind].train()  # here, since a monitor finds its aggregator when it begins
        take_turns(trainees, rounds=arguments.rounds)
        began = perf_counter()
        monitors["frozen"].close()
        closing_seconds = perf_counter() - began
        monitors["working"].close()
    steps_ms = {kind: np.array(trainee.turns)[:, 1] for kind, trainee in trainees.items()}
    bare = steps_ms["none"]
    print(f"step without a monitor: {np.median(bare):.3f} ms")
    for kind, name in NAMES.items():
        low, middle, high = np.percentile(steps_ms[kind] / bare, (25, 50, 75))
        print(f"with {name}: {middle:.3f} of it (quartiles {low:.3f} to {high:.3f})")
    print(f"closing the monitor of the frozen aggregator: {closing_seconds:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
