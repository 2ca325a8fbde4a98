"""What `RankMonitor()` adds to a real training step on CPU, beside what MindSpore's `SummaryCollector` adds.

    python tests/benchmarks/monitor_overhead.py [--rounds 40] [--batch 32] [--width 16] [--mode graph]
    python tests/benchmarks/monitor_overhead.py --batch 1024 --width 224       (a step of about 10 ms)

Trains the same network without a monitor, with `RankMonitor()`, and with `SummaryCollector` at every step (dataset
graph off), in turns of a few dozen steps within one process, so that whatever else the machine does hits all
three alike. A round is one turn of each, in an order that rotates. Printed are what each adds to a step, once by
the turns' mean steps and once by their median steps: the median over the rounds, with the quartiles, as a share of
the bare step, and as a ratio between the two; and what the monitor by its own clock spends on the training thread.

--batch makes the step longer as real training does, by computation. --width adds weights: the gradient probe reads
every gradient once more, which counts where a step computes little with each weight.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import mindspore
import numpy as np
from mindspore import dataset, nn
from mindspore.train import Callback, Model, SummaryCollector
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankside import RankMonitor

WARM_UP_STEPS = 8
KINDS = ("none", "monitor", "collector")
BATCHES = 8  # distinct ones, repeated


class Clock(Callback):
    """Notes when steps end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = []

    def on_train_step_end(self, run_context):  # noqa: ARG002
        self.ends.append(perf_counter())

    @property
    def steps_ms(self) -> np.ndarray:
        return 1e3 * np.diff(self.ends[WARM_UP_STEPS:])


class Trainee:
    """One network, trained a turn at a time."""

    def __init__(self, kind: str, folder: Path, arguments: argparse.Namespace) -> None:
        self.turns = []
        self._kind = kind
        self._folder = folder
        mindspore.set_seed(1)
        width, steps = arguments.width, arguments.steps + WARM_UP_STEPS + 1
        net = nn.SequentialCell(
            nn.Dense(16, width), nn.ReLU(), nn.Dense(width, width), nn.ReLU(), nn.Dense(width, 4)
        )
        rng = np.random.default_rng(0)
        x = rng.standard_normal((BATCHES, arguments.batch, 16)).astype(np.float32)
        y = rng.standard_normal((BATCHES, arguments.batch, 4)).astype(np.float32)
        order = np.arange(steps) % BATCHES
        self._data = dataset.NumpySlicesDataset({"x": x[order], "y": y[order]}, shuffle=False)
        optimizer = nn.Momentum(net.trainable_params(), nn.CosineDecayLR(0.0, 1e-3, 100_000), 0.9)
        self._model = Model(net, nn.MSELoss(), optimizer)
        self.monitor = RankMonitor(log_every=0) if kind == "monitor" else None

    def train(self) -> None:
        """Take one turn, and keep its (mean, median) step in ms."""
        clock = Clock()
        self._model.train(1, self._data, callbacks=[*self._callbacks(), clock])
        self.turns.append((clock.steps_ms.mean(), np.median(clock.steps_ms)))

    def _callbacks(self):
        if self.monitor is not None:
            return [self.monitor]
        if self._kind == "collector":
            folder = self._folder / f"summary_{len(self.turns)}"
            wanted = {"collect_dataset_graph": False}
            return [SummaryCollector(str(folder), collect_freq=1, collect_specified_data=wanted)]
        return []


def report(name: str, turns: dict[str, np.ndarray]) -> None:
    """Print what each kind adds to a step; `turns` holds the ms of each round."""
    bare = np.median(turns["none"])
    print(f"{name} step without a monitor: {bare:.3f} ms")
    added = {}
    for kind, label in (("monitor", "RankMonitor"), ("collector", "SummaryCollector")):
        low, added[kind], high = np.percentile(turns[kind] - turns["none"], (25, 50, 75))
        share = 100 * added[kind] / bare
        print(
            f"  {label} adds {added[kind]:.3f} ms (quartiles {low:.3f} to {high:.3f}), {share:.2f} % of the step"
        )
    print(f"  SummaryCollector adds {added['collector'] / added['monitor']:.0f} times as much")


def overhead_by_own_clock(run_dir: Path) -> float:
    """Return the median of what the monitor measured of itself, in ms a step."""
    events = EventAccumulator(str(run_dir / "rank_0"), size_guidance={"scalars": 0})
    events.Reload()
    return float(np.median([event.value for event in events.Scalars("monitor/overhead-ms")]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=40, help="measured steps in a turn")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--mode", choices=["graph", "pynative"], default="graph")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    mode = mindspore.GRAPH_MODE if arguments.mode == "graph" else mindspore.PYNATIVE_MODE
    mindspore.set_context(mode=mode, device_target="CPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CROSSRANK_RUN_DIR"] = str(folder / "run")
        trainees = [Trainee(kind, folder, arguments) for kind in KINDS]
        for trainee in trainees:  # compiles
            trainee.train()
            trainee.turns.clear()
        for number in range(arguments.rounds):
            for index in range(len(KINDS)):
                trainees[(number + index) % len(KINDS)].train()
        trainees[KINDS.index("monitor")].monitor.close()
        turns = {kind: np.array(t.turns) for kind, t in zip(KINDS, trainees, strict=True)}
        report("mean", {kind: times[:, 0] for kind, times in turns.items()})
        report("median", {kind: times[:, 1] for kind, times in turns.items()})
        print(f"RankMonitor spends {overhead_by_own_clock(folder / 'run'):.3f} ms by its own clock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
