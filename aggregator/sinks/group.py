"""Several sinks as one: a sink that fails is reported once and counted, and never starves its neighbours."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aggregator.detect.finding import Finding
    from aggregator.sinks.sink import ClosedStep, FindingSink, Sink

_LOGGER = logging.getLogger("crossrank")


class SinkGroup:
    """Hands everything to each of its sinks.

    failures: how often each of them failed, by name. last_error: what the last failure was, or "".
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self.last_error = ""
        self._steps: dict[str, Sink] = {}
        self._findings: dict[str, FindingSink] = {}

    def add(self, name: str, *, steps: Sink | None = None, findings: FindingSink | None = None) -> None:
        """Take in a sink for steps, for findings, or for both, under a name for the log."""
        if steps is not None:
            self._steps[name] = steps
        if findings is not None:
            self._findings[name] = findings

    def write(self, closed: ClosedStep) -> None:
        """Write the step to every sink, then announce its findings."""
        for name, sink in self._steps.items():
            self._guard(name, sink.write, closed)
        for finding in closed.findings:
            self.announce(finding)

    def announce(self, finding: Finding) -> None:
        """Announce a finding to every sink that takes them."""
        for name, sink in self._findings.items():
            self._guard(name, sink.announce, finding)

    def flush(self) -> bool:
        """Flush every sink; return whether all of them could."""
        flushed = [self._guard(name, sink.flush) for name, sink in self._all()]
        return all(flushed)

    def close(self) -> None:
        """Close every sink."""
        for name, sink in self._all():
            self._guard(name, sink.close)

    def _all(self) -> Iterable[tuple[str, Sink | FindingSink]]:
        sinks: dict[str, Sink | FindingSink] = {**self._findings, **self._steps}
        return sinks.items()

    def _guard(self, name: str, call: Callable[..., None], *arguments: object) -> bool:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 (one sink's fault must not reach the others)
            self.failures[name] += 1
            self.last_error = str(error)
            if self.failures[name] == 1:
                _LOGGER.warning(
                    "sink %s failed (%s: %s); it is tried again with every step, and failures are counted",
                    name,
                    type(error).__name__,
                    error,
                )
            return False
        return True
