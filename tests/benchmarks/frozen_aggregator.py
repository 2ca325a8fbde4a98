"""Whether a real training step on CPU is slower with `RankMonitor()` and an aggregator that is frozen all the while.

    python tests/benchmarks/frozen_aggregator.py [--repetitions 7] [--steps 400] [--width 64]

Trains the same small network without a monitor, with one whose aggregator is stopped by SIGSTOP before the first
step and continued after the last one, with one whose aggregator works, and without again, in turn. Prints the
medians of the paired ratios: what a frozen and a working aggregator cost, beside what two trainings without a
monitor differ by, which is the noise; and how long a frozen one held up the end of training.
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
from pathlib import Path
from statistics import median
from time import perf_counter

import mindspore
import numpy as np
from monitor_overhead import WARM_UP_STEPS, Clock, train

from rankside import RankMonitor
from rankside.config import ENDPOINT_VARIABLE, RUN_DIR_VARIABLE

KINDS = ("none", "frozen", "working", "none again")


@contextlib.contextmanager
def serving(run_dir: Path, sockets: Path, *, frozen: bool):
    """Give the endpoint of an aggregator; a frozen one is continued at the end, and has to end in order."""
    endpoint = f"ipc://{sockets}/aggregator"
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
        try:
            yield endpoint
        finally:
            process.send_signal(signal.SIGCONT)
            os.close(held)
            if process.wait(60):
                raise RuntimeError("the aggregator did not end in order")
    os.close(ready)
    os.close(lifeline)


def run(kind: str, *, steps: int, width: int) -> tuple[float, float]:
    """Return the median time of a step in ms, and the seconds that the monitor took to close."""
    clock = Clock()
    if kind.startswith("none"):
        train([clock], steps=steps, width=width)
        return _step_ms(clock), 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder / "run", folder, frozen=kind == "frozen") as endpoint:
            os.environ.update({RUN_DIR_VARIABLE: str(folder / "run"), ENDPOINT_VARIABLE: endpoint})
            monitor = RankMonitor(log_every=0)
            train([monitor, clock], steps=steps, width=width)
            began = perf_counter()
            monitor.close()
            return _step_ms(clock), perf_counter() - began


def _step_ms(clock: Clock) -> float:
    return 1e3 * float(np.median(np.diff(clock.ends[WARM_UP_STEPS:])))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    closing = []
    for repetition in range(arguments.repetitions):
        for kind in KINDS:
            step_ms, seconds = run(kind, steps=arguments.steps, width=arguments.width)
            times[kind].append(step_ms)
            closing += [seconds] if kind == "frozen" else []
        print(f"repetition {repetition + 1}:", {k: round(v[-1], 3) for k, v in times.items()}, flush=True)
    ratios = {kind: [a / b for a, b in zip(times[kind], times["none"], strict=True)] for kind in KINDS[1:]}
    print(f"step without a monitor: {median(times['none']):.3f} ms")
    names = {
        "frozen": "with a frozen aggregator",
        "working": "with a working one",
        "none again": "without, again",
    }
    for kind, name in names.items():
        spread = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios[kind]))
        print(f"{name}: {median(ratios[kind]):.3f} of it ({spread})")
    print(f"closing the monitor after the last step: {median(closing):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
