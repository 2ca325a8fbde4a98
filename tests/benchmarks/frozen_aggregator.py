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
from pathlib import Path
from time import perf_counter

import mindspore
import numpy as np
from mindspore import dataset, nn
from mindspore.train import Callback, Model

from rankside import RankMonitor
from rankside.config import ENDPOINT_VARIABLE, RUN_DIR_VARIABLE

WARM_UP_STEPS = 8
KINDS = ("none", "frozen", "working", "none again")
NAMES = {"frozen": "a frozen aggregator", "working": "a working one", "none again": "no monitor, again"}


class Clock(Callback):
    """Notes when steps end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = []

    def on_train_step_end(self, run_context):  # noqa: ARG002
        self.ends.append(perf_counter())


class Trainee:
    """One network, trained a turn at a time."""

    def __init__(self, monitor: RankMonitor | None, *, steps: int, batch: int, width: int) -> None:
        self.step_ms = []
        self.monitor = monitor
        mindspore.set_seed(1)
        net = nn.SequentialCell(
            nn.Dense(16, width), nn.ReLU(), nn.Dense(width, width), nn.ReLU(), nn.Dense(width, 4)
        )
        chance = np.random.default_rng(0)
        count = steps + WARM_UP_STEPS + 1
        x = np.repeat(chance.standard_normal((1, batch, 16)).astype(np.float32), count, axis=0)
        y = np.repeat(chance.standard_normal((1, batch, 4)).astype(np.float32), count, axis=0)
        self._data = dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False)
        optimizer = nn.Momentum(net.trainable_params(), nn.CosineDecayLR(0.0, 1e-3, 100_000), 0.9)
        self._model = Model(net, nn.MSELoss(), optimizer)

    def train(self) -> None:
        clock = Clock()
        monitors = [] if self.monitor is None else [self.monitor]
        self._model.train(1, self._data, callbacks=[*monitors, clock])
        self.step_ms.append(1e3 * float(np.median(np.diff(clock.ends[WARM_UP_STEPS:]))))


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
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=60, help="measured steps in a turn")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--width", type=int, default=224)
    arguments = parser.parse_args()
    size = {"steps": arguments.steps, "batch": arguments.batch, "width": arguments.width}
    logging.disable(logging.WARNING)
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    trainees = {}
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            monitor = None
            if kind in {"frozen", "working"}:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                stack.enter_context(serving(folder, frozen=kind == "frozen"))
                monitor = RankMonitor(log_every=0)
            trainees[kind] = Trainee(monitor, **size)
            trainees[kind].train()  # compiles
            trainees[kind].step_ms.clear()
        for number in range(arguments.rounds):
            for kind in np.roll(KINDS, number):
                trainees[kind].train()
        began = perf_counter()
        trainees["frozen"].monitor.close()
        closing_seconds = perf_counter() - began
        trainees["working"].monitor.close()
    bare = np.array(trainees["none"].step_ms)
    print(f"step without a monitor: {np.median(bare):.3f} ms")
    for kind, name in NAMES.items():
        low, middle, high = np.percentile(np.array(trainees[kind].step_ms) / bare, (25, 50, 75))
        print(f"with {name}: {middle:.3f} of it (quartiles {low:.3f} to {high:.3f})")
    print(f"closing the monitor of the frozen aggregator: {closing_seconds:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
