"""The command lines of the aggregator and the relay that a run plan asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from launch.plan import RunPlan


def serve_arguments(plan: RunPlan, run_dir: Path, endpoint: str) -> list[str]:
    """Return the words that start the aggregator, after the program's name."""
    arguments = ["serve", "--run-dir", str(run_dir), "--bind", endpoint]
    if plan.root is not None:
        arguments += ["--bind", plan.root]
    arguments += ["--max-wait", str(plan.max_wait_seconds), "--max-lag", str(plan.max_lag_steps)]
    if plan.world_size is not None:
        arguments += ["--world-size", str(plan.world_size)]
    for pair in plan.detect:
        arguments += ["--detect", pair]
    if plan.layout is not None:
        arguments += ["--layout", plan.layout]
    if plan.webhook is not None:
        arguments += ["--webhook", plan.webhook]
    if plan.stop_on_nonfinite:
        arguments.append("--stop-on-nonfinite")
    return arguments + _security(plan)


def relay_arguments(plan: RunPlan, endpoint: str) -> list[str]:
    """Return the words that start this node's relay, after the program's name."""
    return ["relay", "--bind", endpoint, "--upstream", str(plan.root), *_security(plan)]


def _security(plan: RunPlan) -> list[str]:
    arguments = [] if plan.key is None else ["--key", str(plan.key)]
    return [*arguments, "--insecure"] if plan.insecure else arguments
