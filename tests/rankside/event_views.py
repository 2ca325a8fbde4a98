"""Event files as tests look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from rankside.eventreader import event_files

if TYPE_CHECKING:
    from pathlib import Path


def in_tensorboard(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def only_file(folder: Path) -> Path:
    (path,) = event_files(folder)
    return path


def raw_events(path: Path) -> list[Event]:
    return [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]


def points(series) -> list[tuple[int, float]]:
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
