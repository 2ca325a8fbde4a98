"""Where closed steps and findings go: the interfaces of every sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding
    from aggregator.step import MergedStep, StepMatrix
    from rankside.tags import Tag


class ClosedStep(NamedTuple):
    """One step that no rank adds to any more: what was reported, its statistics, and what is wrong in it.

    derived: numbers that follow from all ranks together, such as the gradient noise scale, by tag.
    """

    matrix: StepMatrix
    merged: MergedStep
    findings: tuple[Finding, ...]
    derived: tuple[tuple[Tag, float], ...] = ()


class Sink(Protocol):
    """Takes closed steps in ascending order (until one says `session_start`)."""

    def write(self, closed: ClosedStep) -> None:
        """Take one closed step; its findings are announced separately."""
        ...

    def flush(self) -> None:
        """Hand everything taken so far to the operating system."""
        ...

    def close(self) -> None:
        """Flush and let go of files and sockets."""
        ...


class FindingSink(Protocol):
    """Takes findings as they are found, in a step or by the clock."""

    def announce(self, finding: Finding) -> None:
        """Take one finding."""
        ...

    def flush(self) -> None:
        """Hand everything taken so far to the operating system."""
        ...

    def close(self) -> None:
        """Flush and let go of files and sockets."""
        ...
