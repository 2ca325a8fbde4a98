"""Measures what monitoring itself costs the training thread, and shows what was not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankside.tags import Tag, TagKind
from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankside.training.collector import Draft, Training

OVERHEAD = Tag(
    "monitor/overhead-ms",
    TagKind.INFO,
    "ms",
    "time the training thread spent in the monitor since the last report",
)


class SelfWatch(Collector):
    """Tag `monitor/overhead-ms`, and `monitor/dropped`, `monitor/unsent`, ... whenever one of those grew.

    The time counted for a step is that of its beginning and of the end of the step before, since the time of
    its own end is not known before it is over.
    """

    name = "monitor"

    def __init__(self) -> None:
        self._seconds = 0.0
        self._training: Training | None = None
        self._told: dict[str, int] = {}

    def spent(self, seconds: float) -> None:
        """Count time that the training thread spent in the monitor."""
        self._seconds += seconds

    def train_begin(self, training: Training) -> None:
        """Declare the tag; what was spent before the first step does not count."""
        self._training = training
        self._seconds = 0.0
        training.recorder.describe(OVERHEAD)

    def step_end(self, draft: Draft) -> None:
        """Add what was spent, and what was counted since it was last told."""
        draft.values[OVERHEAD.name] = 1e3 * self._seconds / draft.steps
        self._seconds = 0.0
        if draft.reports:
            draft.deferred.append(self._news)

    def _news(self) -> Mapping[str, float]:
        if self._training is None:
            return {}
        counters = dict(self._training.recorder.counters)
        news = {name: count for name, count in counters.items() if count != self._told.get(name, 0)}
        self._told.update(news)
        return {f"monitor/{name}": float(count) for name, count in news.items()}
