"""What every collector of numbers looks like, and what it is told about the training it watches.

A collector adds to the draft of a step's report and returns at once. Whatever lives on the device it adds as
a callable, which the recorder's background thread calls later: fetching it here would make the training
thread wait for the device. What such a callable reads must therefore still be there, and unchanged, later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankside.recorder import Recorder
    from rankside.training.step_output import StepOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One call of `Model.train` or `Model.fit`.

    parameters: MindSpore's callback parameters; reading a missing one raises KeyError, so use `get`.
    run_context: the run context that holds them.
    network: the train cell, with loss and optimizer. optimizer: None where the train cell has none.
    weights: the parameters that are trained.
    recorder: where values that belong to no step go.
    rank: this process's rank. world_size: number of ranks.
    base: what to add to `cur_step_num` to get the step. counted: `cur_step_num` before the first step.
    """

    parameters: Mapping[str, Any]
    run_context: Any
    network: Any
    optimizer: Any
    weights: Sequence[Any]
    recorder: Recorder
    rank: int
    world_size: int
    base: int
    counted: int


@dataclass(slots=True)
class Draft:
    """What one step reports, while collectors add to it.

    step: the step. steps: how many of them ended just now; more than one only where a dataset sink runs several steps
    at once.
    reports: whether a reporting window ends here; costly figures are taken only then.
    output: what the train cell returned.
    values: figures, or callables that fetch one. deferred: callables that fetch several.
    """

    step: int
    steps: int
    reports: bool
    output: StepOutput
    values: dict[str, float | Callable[[], float]] = field(default_factory=dict)
    deferred: list[Callable[[], Mapping[str, float]]] = field(default_factory=list)


class Collector:
    """Collects one kind of numbers; every hook may be left out, and none is called after it raised."""

    name: str

    def train_begin(self, training: Training) -> None:
        """Learn what is trained, before the first step."""

    @property
    def serves(self) -> bool:
        """Whether there is anything to do at the steps of this training; asked when all have learned what is trained.

        A step that computes for milliseconds leaves nothing of the monitor in the processor's caches, and then even a
        hook that does nothing costs the training thread some 3 us.
        """
        return True

    def step_begin(self, step: int) -> None:
        """Take what only exists before a step runs."""

    def step_entered(self, step: int) -> None:
        """Take what other callbacks may still change when a step begins; called when all of them are done."""

    def step_end(self, draft: Draft) -> None:
        """Add to the report of the step that ended."""

    def train_end(self) -> None:
        """Undo what `train_begin` changed, after the last step or after an exception."""
