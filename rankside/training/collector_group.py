"""Runs collectors so that none of them can disturb the training or its neighbours.

This is the one edge at which exceptions of collectors end: a collector that raises is reported once, switched
off for the rest of the process, and counted; the others go on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankside.training.collector import Draft, Training

logger = logging.getLogger("crossrank")


class CollectorGroup:
    """Calls each hook of the collectors that have it, in the order given."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = list(collectors)
        self.failed: dict[str, str] = {}
        self._bind()

    def train_begin(self, training: Training) -> None:
        """Tell all collectors what is trained."""
        for collector in tuple(self._collectors):
            try:
                collector.train_begin(training)
            except Exception as error:  # noqa: BLE001 (the edge)
                self._switch_off(collector, error)
        self._bind()

    def step_begin(self, step: int) -> None:
        """Tell all collectors that a step begins."""
        for collector, hook in self._step_begin:
            try:
                hook(step)
            except Exception as error:  # noqa: BLE001 (the edge)
                self._switch_off(collector, error)

    def step_entered(self, step: int) -> None:
        """Tell all collectors that a step is about to be entered."""
        for collector, hook in self._step_entered:
            try:
                hook(step)
            except Exception as error:  # noqa: BLE001 (the edge)
                self._switch_off(collector, error)

    def step_end(self, draft: Draft) -> None:
        """Let all collectors add to the report of a step."""
        for collector, hook in self._step_end:
            try:
                hook(draft)
            except Exception as error:  # noqa: BLE001 (the edge)
                self._switch_off(collector, error)

    def train_end(self) -> None:
        """Let all collectors undo what they changed."""
        for collector in tuple(self._collectors):
            try:
                collector.train_end()
            except Exception as error:  # noqa: BLE001 (the edge)
                self._switch_off(collector, error)

    def _switch_off(self, collector: Collector, error: Exception) -> None:
        logger.warning(
            "%s is no longer recorded, since it failed with %s: %s. Training and all other numbers go on.",
            collector.name,
            type(error).__name__,
            error,
        )
        self.failed[collector.name] = f"{type(error).__name__}: {error}"
        self._collectors.remove(collector)
        self._bind()

    def _bind(self) -> None:
        # New lists, so that a loop that runs over the old ones is not disturbed.
        serving = [collector for collector in self._collectors if collector.serves]
        self._step_begin: list[tuple[Collector, Callable[[int], None]]] = [
            (collector, collector.step_begin)
            for collector in serving
            if type(collector).step_begin is not Collector.step_begin
        ]
        self._step_entered: list[tuple[Collector, Callable[[int], None]]] = [
            (collector, collector.step_entered)
            for collector in serving
            if type(collector).step_entered is not Collector.step_entered
        ]
        self._step_end: list[tuple[Collector, Callable[[Draft], None]]] = [
            (collector, collector.step_end)
            for collector in serving
            if type(collector).step_end is not Collector.step_end
        ]
