"""Several sinks as one: a sink that fails is reported once and counted, and never starves its neighbours."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggregator.sinks.sink import ClosedStep, Sink

_LOGGER = logging.getLogger("crossrank")


class SinkGroup:
    """Hands everything to each of its sinks. failures: how often each of them failed, by name."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._sinks: dict[str, Sink] = {}

    def add(self, name: str, sink: Sink) -> None:
        """Take in a sink under a name for the log."""
        self._sinks[name] = sink

    def write(self, closed: ClosedStep) -> None:
        """Write the step to every sink."""
        for name, sink in self._sinks.items():
            self._guard(name, lambda sink=sink: sink.write(closed))  # type: ignore[misc]

    def flush(self) -> bool:
        """Flush every sink; return whether all of them could."""
        flushed = [self._guard(name, sink.flush) for name, sink in self._sinks.items()]
        return all(flushed)

    def close(self) -> None:
        """Close every sink."""
        for name, sink in self._sinks.items():
            self._guard(name, sink.close)

    def _guard(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (one sink's fault must not reach the others)
            self.failures[name] += 1
            if self.failures[name] == 1:
                _LOGGER.warning(
                    "sink %s failed (%s: %s); it is tried again with every step, and failures are counted",
                    name,
                    type(error).__name__,
                    error,
                )
            return False
        return True
