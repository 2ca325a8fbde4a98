"""Where closed steps go: the interface of every sink, and the group that keeps sinks apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding
    from aggregator.step import MergedStep, StepMatrix


class ClosedStep(NamedTuple):
    """One step that no rank adds to any more: what was reported, its statistics, and what is wrong in it."""

    matrix: StepMatrix
    merged: MergedStep
    findings: tuple[Finding, ...]


class Sink(Protocol):
    """Takes closed steps in ascending order (until one says `session_start`)."""

    def write(self, closed: ClosedStep) -> None:
        """Take one closed step."""
        ...

    def flush(self) -> None:
        """Hand everything taken so far to the operating system."""
        ...

    def close(self) -> None:
        """Flush and let go of files and sockets."""
        ...
