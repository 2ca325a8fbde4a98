"""Writes into `run.json` what only the launcher knows: the command, the start time and the versions."""

from __future__ import annotations

import json
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from aggregator.sinks import run_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DISTRIBUTIONS = ("crossrank", "mindspore", "mindformers", "numpy", "tensorboard")


def run_record(run_name: str, command: Sequence[str], *, now: float) -> dict[str, object]:
    """Return the entries: run, command, start_time (UTC, ISO 8601) and versions of what is installed."""
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "run": run_name,
        "command": list(command),
        "start_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "versions": versions,
    }


def write_run_record(run_dir: Path, command: Sequence[str], *, now: float) -> None:
    """Put the entries into the run's file, beside those that are there. Raises OSError."""
    path = run_dir / "run.json"
    entries = {**run_file.read(path), **run_record(run_dir.name, command, now=now)}
    run_file.publish(path, json.dumps(entries, indent=2))
