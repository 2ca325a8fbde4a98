"""What `RankMonitor()` adds to a real training step on CPU, beside what MindSpore's `SummaryCollector` adds.

    python tests/benchmarks/monitor_overhead.py [--rounds 40] [--batch 32] [--width 16] [--copies 3] [--mode graph]
    python tests/benchmarks/monitor_overhead.py --batch 4096 --width 224 --rounds 15       (a step of about 10 ms)

Trains the same network without a monitor, with `RankMonitor()`, and with `SummaryCollector` at every step (dataset
graph off), in turns of a few dozen steps within one process, so that whatever else the machine does hits all
alike. Two networks that are trained alike differ by where they happen to lie in memory; so there are several copies
of each, and a round is one turn of every copy, in an order drawn anew. Printed are what each adds to a step, once by
the turns' mean steps and once by their median steps: the median over the rounds, with the quartiles, as a share of
the bare step, and as a ratio between the two; how far two copies without a monitor are apart, which is the noise; and
what the monitor by its own clock spends on the training thread.

--batch makes the step longer as real training does, by computation. --width adds weights: the gradient probe reads
every gradient once more, which counts where a step computes little with each weight.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import tempfile
from pathlib import Path

import mindspore
import numpy as np
from mindspore.train import SummaryCollector
from paired_training import Material, Trainee, add_size, take_turns
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankside import RankMonitor

KINDS = ("none", "monitor", "collector")


def report(name: str, turns: dict[str, np.ndarray]) -> None:
    """Print what each kind adds to a step; `turns` holds the ms of each round and copy."""
    rounds = {kind: times.mean(axis=1) for kind, times in turns.items()}
    bare = np.median(rounds["none"])
    print(f"{name} step without a monitor: {bare:.3f} ms")
    added = {}
    for kind, label in (("monitor", "RankMonitor"), ("collector", "SummaryCollector")):
        low, added[kind], high = np.percentile(rounds[kind] - rounds["none"], (25, 50, 75))
        share = 100 * added[kind] / bare
        print(
            f"  {label} adds {added[kind]:.3f} ms (quartiles {low:.3f} to {high:.3f}), {share:.2f} % of the step"
        )
    print(f"  SummaryCollector adds {added['collector'] / added['monitor']:.0f} times as much")
    if turns["none"].shape[1] > 1:
        apart = np.median(turns["none"], axis=0)
        print(f"  copies without a monitor are up to {np.ptp(apart):.3f} ms apart")


def overhead_by_own_clock(run_dir: Path) -> float:
    """Return the median of what the monitor measured of itself, in ms a step."""
    events = EventAccumulator(str(run_dir / "rank_0"), size_guidance={"scalars": 0})
    events.Reload()
    return float(np.median([event.value for event in events.Scalars("monitor/overhead-ms")]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_size(parser, rounds=40, steps=40, batch=32, width=16)
    parser.add_argument("--copies", type=int, default=3, help="networks of each kind")
    parser.add_argument("--mode", choices=["graph", "pynative"], default="graph")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    mode = mindspore.GRAPH_MODE if arguments.mode == "graph" else mindspore.PYNATIVE_MODE
    mindspore.set_context(mode=mode, device_target="CPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CROSSRANK_RUN_DIR"] = str(folder / "run")
        monitor, numbers = RankMonitor(log_every=0), itertools.count()

        def collectors():
            wanted = {"collect_dataset_graph": False}
            summaries = str(folder / f"summary_{next(numbers)}")
            return [SummaryCollector(summaries, collect_freq=1, collect_specified_data=wanted)]

        callbacks = {"none": list, "monitor": lambda: [monitor], "collector": collectors}
        copies = range(arguments.copies)
        material = Material(arguments)
        trainees = {(kind, copy): Trainee(callbacks[kind], material) for copy in copies for kind in KINDS}
        take_turns(trainees, rounds=arguments.rounds)
        monitor.close()
        turns = {kind: np.array([trainees[kind, copy].turns for copy in copies]).T for kind in KINDS}
        for statistic, which in (("mean", 0), ("median", 1)):
            report(statistic, {kind: times[which] for kind, times in turns.items()})
        print(f"RankMonitor spends {overhead_by_own_clock(folder / 'run'):.3f} ms by its own clock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
