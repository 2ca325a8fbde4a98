"""What `RankMonitor()` adds to a real training step on CPU, beside what MindSpore's `SummaryCollector` adds.

    python tests/benchmarks/monitor_overhead.py [--repetitions 7] [--steps 400] [--width 16] [--mode graph]

Trains the same small network without a monitor, with `RankMonitor()`, and with `SummaryCollector` at every step
(dataset graph off), in turn, and prints the time of a step, what each adds, and the ratio: medians over the
repetitions. A second figure, `in the hooks`, is what the monitor itself measured on the training thread. Use
--width to make the step longer.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import mindspore
import numpy as np
from mindspore import dataset, nn
from mindspore.train import Callback, Model, SummaryCollector

from rankside import RankMonitor

WARM_UP_STEPS = 50


class Clock(Callback):
    """Notes when steps end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = []

    def on_train_step_end(self, run_context):  # noqa: ARG002
        self.ends.append(perf_counter())

    @property
    def step_ms(self) -> float:
        ends = self.ends[WARM_UP_STEPS:]
        return 1e3 * (ends[-1] - ends[0]) / (len(ends) - 1)


def train(callbacks, *, steps: int, width: int) -> float:
    """Train a fresh network and return the time of a step, in ms."""
    mindspore.set_seed(1)
    net = nn.SequentialCell(
        nn.Dense(16, width), nn.ReLU(), nn.Dense(width, width), nn.ReLU(), nn.Dense(width, 4)
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, 32, 16)).astype(np.float32)
    y = rng.standard_normal((steps, 32, 4)).astype(np.float32)
    data = dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False)
    clock = Clock()
    optimizer = nn.Momentum(net.trainable_params(), nn.CosineDecayLR(0.0, 1e-3, steps), 0.9)
    Model(net, nn.MSELoss(), optimizer).train(1, data, callbacks=[*callbacks, clock])
    return clock.step_ms


def run(kind: str, folder: Path, arguments) -> float:
    if kind == "none":
        return train([], steps=arguments.steps, width=arguments.width)
    if kind == "monitor":
        os.environ["CROSSRANK_RUN_DIR"] = str(folder)
        monitor = RankMonitor(log_every=0)
        step_ms = train([monitor], steps=arguments.steps, width=arguments.width)
        monitor.close()
        return step_ms
    collector = SummaryCollector(
        str(folder), collect_freq=1, collect_specified_data={"collect_dataset_graph": False}
    )
    return train([collector], steps=arguments.steps, width=arguments.width)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--mode", choices=["graph", "pynative"], default="graph")
    parser.add_argument("--kinds", default="none,monitor,collector")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    mode = mindspore.GRAPH_MODE if arguments.mode == "graph" else mindspore.PYNATIVE_MODE
    mindspore.set_context(mode=mode)
    kinds = arguments.kinds.split(",")
    times = {kind: [] for kind in kinds}
    for repetition in range(arguments.repetitions):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                times[kind].append(run(kind, Path(folder), arguments))
        print(f"repetition {repetition + 1}:", {k: round(v[-1], 3) for k, v in times.items()}, flush=True)
    bare = median(times["none"])
    print(f"step without a monitor: {bare:.3f} ms")
    added = {
        kind: median(a - b for a, b in zip(times[kind], times["none"], strict=True)) for kind in kinds[1:]
    }
    for kind, ms in added.items():
        print(f"{kind} adds {ms:.3f} ms a step, {100 * ms / bare:.1f} % of it")
    if len(added) == 2:
        print(
            f"SummaryCollector adds {added['collector'] / added['monitor']:.1f} times as much as RankMonitor"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
