"""`crossrank demo`: four ranks under a real msrun, one of them silently damaged."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from pathlib import Path

from launch.errors import UsageError
from launch.plan import RunPlan
from launch.sidecar import run_with_sidecar
from launch.summary import summary
from launch.tensorboard import open_tensorboard
from launch.terminal import tell

_RANKS = 4
_STEPS = 200
DAMAGED_RANK = 2
DAMAGED_FROM = 120


def demo(logdir: Path, *, healthy: bool, tensorboard: bool) -> int:
    """Train, print what was found, open TensorBoard if asked to; return the exit code.

    logdir: the folder of runs; msrun's log files go beside the run, into `<run>-msrun`.
    Raises UsageError when mindspore is missing or `logdir` cannot be written.
    """
    msrun = _find_msrun()
    name = f"demo-{time.strftime('%Y%m%d-%H%M%S')}" + ("-healthy" if healthy else "")
    plan = RunPlan.checked(
        command=_msrun_command(msrun, logdir.absolute() / f"{name}-msrun", healthy=healthy),
        logdir=logdir,
        run_name=name,
        name_parts=(),
        time_stamp="",
        bind=None,
        max_wait_seconds=30.0,
        max_lag_steps=10_000,
    )
    damage = "no damage" if healthy else f"rank {DAMAGED_RANK} silently damaged from step {DAMAGED_FROM} on"
    tell(f"{_RANKS} ranks on CPU, {_STEPS} steps, {damage}; this takes half a minute")
    outcome = run_with_sidecar(plan, _environment())
    for line in summary(outcome.run_dir, complete=outcome.complete):
        tell(line)
    if outcome.exit_code == 0 and tensorboard:
        return open_tensorboard(outcome.run_dir, per_rank_view=_RANKS, arguments=("--port", "0"))
    return outcome.exit_code


def _find_msrun() -> Path:
    """Return the msrun that belongs to this Python."""
    msrun = Path(sys.executable).parent / "msrun"
    if importlib.util.find_spec("mindspore") is None or not msrun.exists():
        raise UsageError(
            "the demo needs mindspore in this Python; install it with: pip install 'crossrank[demo]'"
        )
    return msrun


def _msrun_command(msrun: Path, log_dir: Path, *, healthy: bool) -> list[str]:
    command = [
        str(msrun),
        f"--worker_num={_RANKS}",
        f"--local_worker_num={_RANKS}",
        "--join=True",
        "--tail_worker_log=0",
        f"--master_port={_free_port()}",
        f"--log_dir={log_dir}",
        str(Path(__file__).with_name("train.py")),
        f"--steps={_STEPS}",
    ]
    return (
        command if healthy else [*command, f"--damaged-rank={DAMAGED_RANK}", f"--damaged-from={DAMAGED_FROM}"]
    )


def _environment() -> dict[str, str]:
    """Return the environment in which msrun finds this Python as `python`, and warns of nothing."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"GLOG_v": "3", **os.environ, "PATH": path}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
