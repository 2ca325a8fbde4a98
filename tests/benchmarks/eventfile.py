"""Compares writing and reading event files with TensorBoard's and tensorboardX's ways, in one run.

    python -m tests.benchmarks.eventfile

Repetitions alternate between the contestants; the table shows medians, and how many times as fast ours is.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorboardX
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter as TensorBoardWriter

from rankside.eventfile import EventFileWriter
from rankside.eventreader import read_reports, read_scalars
from rankside.tags import Tag

WRITE_TAGS = tuple(Tag(f"train/metric-{i}") for i in range(16))
READ_TAGS = tuple(Tag(f"train/metric-{i}") for i in range(8))
READ_RANKS = 16
READ_STEPS = 2000
REPETITIONS = 5


def write_ours(folder: Path, steps: int) -> None:
    writer = EventFileWriter(folder)
    values = np.linspace(0.1, 1.6, len(WRITE_TAGS))
    for step in range(steps):
        writer.write_scalars(step, WRITE_TAGS, values)
    writer.close()


def write_tensorboard(folder: Path, steps: int) -> None:
    writer = TensorBoardWriter(str(folder))
    values = np.linspace(0.1, 1.6, len(WRITE_TAGS)).tolist()
    for step in range(steps):
        summary = Summary(
            value=[
                Summary.Value(tag=tag.name, simple_value=value)
                for tag, value in zip(WRITE_TAGS, values, strict=True)
            ]
        )
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    writer.close()


def write_tensorboardx(folder: Path, steps: int) -> None:
    writer = tensorboardX.SummaryWriter(str(folder))
    values = np.linspace(0.1, 1.6, len(WRITE_TAGS)).tolist()
    for step in range(steps):
        for tag, value in zip(WRITE_TAGS, values, strict=True):
            writer.add_scalar(tag.name, value, step)
    writer.close()


def read_ours(folders: list[Path]) -> None:
    for folder in folders:
        series = read_scalars(folder)
        assert all(len(series[tag.name].steps) == READ_STEPS for tag in READ_TAGS)


def read_ours_reports(folders: list[Path]) -> None:
    for folder in folders:
        assert sum(1 for _ in read_reports(folder)) == READ_STEPS


def read_accumulator(folders: list[Path]) -> None:
    for folder in folders:
        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        assert all(len(accumulator.Scalars(tag.name)) == READ_STEPS for tag in READ_TAGS)


def bench_writing() -> None:
    contestants = {
        "crossrank, an event a step": (write_ours, 20_000),
        "TensorBoard, an event a step": (write_tensorboard, 2_000),
        "tensorboardX, add_scalar": (write_tensorboardx, 200),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(REPETITIONS):
        for name, (write, steps) in contestants.items():
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                write(Path(folder), steps)
                rates[name].append(steps * len(WRITE_TAGS) / (time.perf_counter() - begin))
    show("writing 16 scalars a step", rates)


def bench_reading() -> None:
    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root) / f"rank_{rank}" for rank in range(READ_RANKS)]
        rng = np.random.default_rng(0)
        for folder in folders:
            writer = EventFileWriter(folder)
            for step in range(READ_STEPS):
                writer.write_scalars(step, READ_TAGS, rng.random(len(READ_TAGS)))
            writer.close()
        contestants = {
            "crossrank, read_scalars": (read_ours, folders),
            "crossrank, read_reports": (read_ours_reports, folders),
            "TensorBoard, EventAccumulator": (read_accumulator, folders[:2]),
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(REPETITIONS):
            for name, (read, some) in contestants.items():
                begin = time.perf_counter()
                read(some)
                scalars = len(some) * READ_STEPS * len(READ_TAGS)
                rates[name].append(scalars / (time.perf_counter() - begin))
    show(f"reading {READ_RANKS} ranks x {READ_STEPS} steps x {len(READ_TAGS)} tags", rates)


def show(title: str, rates: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(of_one) for name, of_one in rates.items()}
    ours = next(iter(medians.values()))
    print(f"{title:<45}{'scalars/s':>12}{'ours is':>10}")
    for name, median in medians.items():
        print(f"  {name:<43}{median:>12,.0f}{ours / median:>9.1f}x")


if __name__ == "__main__":
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    bench_writing()
    bench_reading()
