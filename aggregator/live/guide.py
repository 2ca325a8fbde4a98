"""The back channel: what each rank should know or do, gathered from closed steps and findings.

A sink like any other, so that it sees what the files see. Around a finding every rank is asked to report every
step for a while. Ranks are asked to stop training only where the user has switched that on, and only after a
loss that is not finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankside import messages

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding
    from aggregator.sinks.sink import ClosedStep
    from aggregator.step import MergedStep

_DENSE_STEPS = 200  # reported one by one after a finding
_TOLD = ("loss", "grad-norm", "local-grad-norm")  # what a rank is told about the others, for its log
_LISTENERS = (0,)  # the ranks that write a log line


class Guide:
    """What the aggregator advises. stop_on_nonfinite: ask for an orderly stop after a loss that is not finite."""

    def __init__(self, *, stop_on_nonfinite: bool = False) -> None:
        self._stop_on_nonfinite = stop_on_nonfinite
        self._dense_until = 0
        self._stacks = 0
        self._stop = ""
        self._step = 0
        self._places: tuple[messages.Place, ...] = ()

    def write(self, closed: ClosedStep) -> None:
        """Take note of a closed step."""
        matrix, merged = closed.matrix, closed.merged
        names = [matrix.tags[i].name for i in matrix.tag_ids]
        if "loss" in names:
            self._step = matrix.step
            self._places = tuple(_place(name, merged, names.index(name)) for name in _TOLD if name in names)

    def announce(self, finding: Finding) -> None:
        """Take note of a finding."""
        if self._stop_on_nonfinite and finding.kind == "nonfinite" and finding.status != "closed":
            metrics = finding.evidence["tags"]  # the loss may follow a gradient norm
            if isinstance(metrics, list) and "loss" in metrics:
                self._stop = self._stop or finding.message
        if finding.status != "open":
            return
        self._dense_until = max(self._dense_until, finding.step + _DENSE_STEPS)
        if finding.kind == "stalled":
            self._stacks += 1

    def advise(self, rank: int, incarnation: int) -> messages.Advice:
        """Return what this rank should know now."""
        places = self._places if rank in _LISTENERS else ()
        step = self._step if places else 0
        return messages.Advice(rank, incarnation, self._dense_until, self._stacks, self._stop, step, places)

    def flush(self) -> None:
        """Do nothing: there is no file."""

    def close(self) -> None:
        """Do nothing: there is no file."""


def _place(name: str, merged: MergedStep, index: int) -> messages.Place:
    return messages.Place(
        name,
        float(merged.mean[index]),
        float(merged.minimum[index]),
        float(merged.maximum[index]),
        int(merged.rank_of_min[index]),
        int(merged.rank_of_max[index]),
    )
