"""Collects memory: the process's resident set, and the device's where training runs on one."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore

from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankside.training.collector import Draft, Training

_MIB = 1 << 20


class Memory(Collector):
    """Tag `memory`; on a GPU or an Ascend also `device-memory` and `device-memory-peak`. In MiB.

    All are read on the background thread, so they are of about, not exactly, the end of the step.
    """

    name = "memory"

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm: int | None = None
        self._device: Any = None

    def train_begin(self, training: Training) -> None:
        """Find out whether there is a device with a memory of its own."""
        del training
        self._statm = _statm(os.getpid())
        if mindspore.get_context("device_target") != "CPU":
            self._device = getattr(mindspore, "runtime", None) or mindspore.hal

    def step_end(self, draft: Draft) -> None:
        """Add what is in use, at steps that report."""
        if not draft.reports:
            return
        if self._statm is not None:
            draft.values["memory"] = self._resident
        if self._device is not None:
            draft.deferred.append(_device_memory(self._device))

    def _resident(self) -> float:
        pages = int(os.pread(self._statm, 128, 0).split()[1]) if self._statm is not None else 0
        return pages * self._page_bytes / _MIB


@functools.cache
def _statm(pid: int) -> int | None:
    """Return a descriptor that stays open as long as the process, whose memory it shows; None where there is none."""
    path = Path(f"/proc/{pid}/statm")
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path.exists() else None


def _device_memory(device: Any) -> Callable[[], Mapping[str, float]]:
    def read() -> Mapping[str, float]:
        return {
            "device-memory": device.memory_allocated() / _MIB,
            "device-memory-peak": device.max_memory_allocated() / _MIB,
        }

    return read
