"""What is written into a new run's `run.json` by whoever makes its folder, the launcher or rank 0."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
