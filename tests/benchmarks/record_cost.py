"""What recording 16 scalars a step costs the training thread, beside the same through tensorboardX.

    python tests/benchmarks/record_cost.py [--steps 2000] [--repetitions 9] [--tags 16]

Records the same numbers through `Recorder.log` and through `tensorboardX.SummaryWriter.add_scalar`, which
mindformers uses, in turn. Prints the time a step takes the calling thread: the median over repetitions of the
mean over steps. Both write their files meanwhile, on threads of their own. Between two steps the calling thread
lets go of the interpreter for a moment, as a training step does; that time is not counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from time import perf_counter

from tensorboardX import SummaryWriter

from rankside import RankConfig, Recorder

STEP_SECONDS = 0.001


def ours(folder: Path, names, *, steps: int) -> float:
    recorder = Recorder(RankConfig.from_environment({}, run_dir=folder))
    recorder.start()
    spent = 0.0
    for step in range(1, steps + 1):
        values = dict.fromkeys(names, step + 0.5)
        began = perf_counter()
        recorder.log(step, values)
        spent += perf_counter() - began
        time.sleep(STEP_SECONDS)
    recorder.finish(timeout_seconds=60.0)
    return 1e6 * spent / steps


def theirs(folder: Path, names, *, steps: int) -> float:
    writer = SummaryWriter(str(folder))
    spent = 0.0
    for step in range(1, steps + 1):
        values = dict.fromkeys(names, step + 0.5)
        began = perf_counter()
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        spent += perf_counter() - began
        time.sleep(STEP_SECONDS)
    writer.close()
    return 1e6 * spent / steps


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--tags", type=int, default=16)
    arguments = parser.parse_args()
    names = [f"metric/{index}" for index in range(arguments.tags)]
    ours_us, theirs_us = [], []
    for _ in range(arguments.repetitions):
        for times, record in ((ours_us, ours), (theirs_us, theirs)):
            with tempfile.TemporaryDirectory() as folder:
                times.append(record(Path(folder), names, steps=arguments.steps))
    print(f"Recorder.log:          {median(ours_us):8.2f} us a step of {arguments.tags} scalars")
    print(f"tensorboardX.add_scalar: {median(theirs_us):6.1f} us")
    print(
        f"tensorboardX takes {median(a / b for a, b in zip(theirs_us, ours_us, strict=True)):.0f} times as long"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
