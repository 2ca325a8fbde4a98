"""`crossrank overhead`: what monitoring adds to a step of the user's own command, measured in turns.

The turns go without, with, with, without, …, so that a machine that slows down or speeds up favours neither. In all
of them the same timer stands in the callback list and an aggregator beside the command; only the monitor is left out
in half of them. The first steps of a turn, which compile, are left out. All figures come at the end, since what the
command prints would drown them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from launch.errors import UsageError
from launch.plan import RunPlan
from launch.sidecar import run_with_sidecar
from launch.terminal import say, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]

_LEFT_OUT_STEPS = 10
_FAILED = 3


class Quartiles(NamedTuple):
    """Milliseconds a step: the median, and the quartiles below and above it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, milliseconds: Float64Array) -> Quartiles:
        """Return those of the values, shape (n,), n > 0."""
        return cls(*(float(value) for value in np.percentile(milliseconds, [25, 50, 75])))

    def __str__(self) -> str:
        return f"median {self.median:.3f} ms, quartiles {self.low:.3f} to {self.high:.3f} ms"


class Turn(NamedTuple):
    """One run of the command; steps: how many were timed, on all ranks together."""

    name: str
    monitored: bool
    quartiles: Quartiles
    steps: int


def overhead(command: Sequence[str], *, steps: int, repeat: int, environment: Mapping[str, str]) -> int:
    """Run the turns, print what monitoring adds to a step, and return the exit code.

    steps: that each turn trains. repeat: pairs of turns. Raises UsageError before anything is started.
    """
    if steps <= 2 * _LEFT_OUT_STEPS:
        raise UsageError(f"--steps must be more than {2 * _LEFT_OUT_STEPS}, not {steps}")
    if repeat < 1:
        raise UsageError(f"--repeat must be at least 1, not {repeat}")
    order = ([False, True, True, False] * repeat)[: 2 * repeat]
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory(prefix="crossrank-overhead-") as folder:
        plan = _plan(command, Path(folder))
        for number, monitored in enumerate(order, start=1):
            name = f"turn {number} of {len(order)}, {'with monitoring' if monitored else 'without'}"
            say(name)
            times = Path(folder) / f"times-{number}"
            times.mkdir()
            told = {
                **environment,
                "CROSSRANK_STEP_TIMES": str(times),
                "CROSSRANK_STEP_LIMIT": str(steps),
                "CROSSRANK_UNMONITORED": "0" if monitored else "1",
            }
            code = run_with_sidecar(plan, told).exit_code
            if code:
                say(f"{name}: the command ended with exit code {code}")
                return _FAILED
            milliseconds = _read(times)
            if not len(milliseconds):
                say(f"{name}: no more than {_LEFT_OUT_STEPS} steps of Model.train or Model.fit were timed")
                return _FAILED
            turns.append(Turn(name, monitored, Quartiles.of(milliseconds), len(milliseconds)))
    for line in report(turns):
        tell(line)
    return 0


def report(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield the lines that say what was measured; the turns are pairs of one with and one without monitoring."""
    for turn in turns:
        yield f"{turn.name}: {turn.quartiles}, {turn.steps} steps of all ranks"
    yield f"the first {_LEFT_OUT_STEPS} steps of each turn, which compile, are left out"
    without = np.array([turn.quartiles.median for turn in turns if not turn.monitored])
    added = np.array([turn.quartiles.median for turn in turns if turn.monitored]) - without
    low, middle, high = np.percentile(added, [25, 50, 75])
    low_percent, middle_percent, high_percent = np.percentile(100 * added / without, [25, 50, 75])
    adds = f"monitoring adds {middle:+.3f} ms a step ({middle_percent:+.2f} %)"
    if len(added) == 1:
        yield f"{adds} in one pair of turns; by how much turns differ, a higher --repeat tells"
        return
    yield (
        f"{adds}: median of {len(added)} pairs of turns, "
        f"quartiles {low:+.3f} to {high:+.3f} ms ({low_percent:+.2f} to {high_percent:+.2f} %)"
    )
    if low < 0 < high:
        yield "turns differ by more than monitoring adds; a higher --steps or --repeat, or a quiet machine, tells more"


def _plan(command: Sequence[str], logdir: Path) -> RunPlan:
    plan = RunPlan.checked(
        command=command,
        logdir=logdir,
        run_name=None,
        name_parts=(),
        time_stamp="run",
        bind=None,
        max_wait_seconds=30.0,
        max_lag_steps=10_000,
        insecure=True,
    )
    if plan.root is not None:
        raise UsageError(
            "crossrank overhead measures a command on one node; give --local_worker_num=--worker_num"
        )
    return plan


def _read(folder: Path) -> Float64Array:
    """Return the milliseconds a step of all ranks, without each rank's first steps."""
    seconds = [json.loads(path.read_text())[_LEFT_OUT_STEPS:] for path in sorted(folder.glob("rank_*.json"))]
    return 1e3 * np.array([value for rank in seconds for value in rank], np.float64)
