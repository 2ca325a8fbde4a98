"""`crossrank overhead`: what monitoring adds to a step of the user's own command, measured in turns.

The turns go without, with, with, without, …, so that a machine that slows down or speeds up favours neither. In all
of them the same timer stands in the callback list and an aggregator beside the command; only the monitor is left out
in half of them. The first steps of a turn, which compile, are left out.
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
    from collections.abc import Mapping, Sequence

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


def overhead(command: Sequence[str], *, steps: int, repeat: int, environment: Mapping[str, str]) -> int:
    """Run the turns, print what monitoring adds to a step, and return the exit code.

    steps: that each turn trains. repeat: pairs of turns. Raises UsageError before anything is started.
    """
    if steps <= 2 * _LEFT_OUT_STEPS:
        raise UsageError(f"--steps must be more than {2 * _LEFT_OUT_STEPS}, not {steps}")
    if repeat < 1:
        raise UsageError(f"--repeat must be at least 1, not {repeat}")
    with tempfile.TemporaryDirectory(prefix="crossrank-overhead-") as folder:
        plan = _plan(command, Path(folder))
        pairs: list[dict[bool, Quartiles]] = []
        for pair in range(repeat):
            pairs.append({})
            for monitored in (False, True) if pair % 2 == 0 else (True, False):
                name = f"turn {2 * pair + len(pairs[-1]) + 1} of {2 * repeat}, {_named(monitored)}"
                times = Path(folder) / f"times-{pair}-{monitored}"
                times.mkdir()
                told = {**environment, "CROSSRANK_STEP_TIMES": str(times), "CROSSRANK_STEP_LIMIT": str(steps)}
                code = run_with_sidecar(
                    plan, {**told, "CROSSRANK_UNMONITORED": "0" if monitored else "1"}
                ).exit_code
                if code:
                    say(f"{name}: the command ended with exit code {code}")
                    return _FAILED
                milliseconds = _read(times)
                if not len(milliseconds):
                    say(
                        f"{name}: no more than {_LEFT_OUT_STEPS} steps of Model.train or Model.fit were timed"
                    )
                    return _FAILED
                pairs[-1][monitored] = Quartiles.of(milliseconds)
                tell(f"{name}: {pairs[-1][monitored]}, {len(milliseconds)} steps of all ranks")
    _tell_difference(pairs)
    return 0


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


def _tell_difference(pairs: Sequence[Mapping[bool, Quartiles]]) -> None:
    added = np.array([pair[True].median - pair[False].median for pair in pairs])
    percent = np.array([100 * ms / pair[False].median for ms, pair in zip(added, pairs, strict=True)])
    low, middle, high = np.percentile(added, [25, 50, 75])
    low_percent, middle_percent, high_percent = np.percentile(percent, [25, 50, 75])
    tell(f"the first {_LEFT_OUT_STEPS} steps of each turn, which compile, are left out")
    tell(
        f"monitoring adds {middle:+.3f} ms a step ({middle_percent:+.2f} %): median of {len(pairs)} pairs of turns, "
        f"quartiles {low:+.3f} to {high:+.3f} ms ({low_percent:+.2f} to {high_percent:+.2f} %)"
    )


def _named(monitored: bool) -> str:
    return "with monitoring" if monitored else "without"
