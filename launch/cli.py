"""The crossrank command line: parses and delegates.

Exit codes stand in every `--help`. A command's modules are loaded when it has been chosen, not before.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launch.errors import UsageError
from launch.parser import make_parser
from launch.terminal import say, tell
from rankside.config import KEY_VARIABLE
from rankside.errors import CrossrankError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line, without the program's name; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    before, rest = words[:end], words[end + 1 :]
    try:
        options = make_parser().parse_args(before)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    try:
        if end < len(words) and not options.takes_rest:
            raise UsageError(f"crossrank {options.command} takes nothing after --")
        return _COMMANDS[options.command](options, rest)
    except CrossrankError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        say(f"{error.filename or options.command}: {error.strerror or error}")
        return 1


def _run(options: argparse.Namespace, command: list[str]) -> int:
    from launch.plan import RunPlan
    from launch.sidecar import run_with_sidecar
    from launch.summary import summary

    plan = RunPlan.checked(
        command=_required(options.command, command),
        logdir=options.logdir,
        run_name=options.run_name,
        name_parts=options.name_with,
        time_stamp=time.strftime("%Y%m%d-%H%M%S"),
        bind=options.bind,
        max_wait_seconds=options.max_wait,
        max_lag_steps=options.max_lag,
        detect=options.detect,
        layout=options.layout,
        webhook=options.webhook,
        stop_on_nonfinite=options.stop_on_nonfinite,
        attach=options.attach,
        port=options.port,
        key=options.key or _key_of_environment(),
        insecure=options.insecure,
    )
    outcome = run_with_sidecar(plan, os.environ)
    for line in summary(outcome.run_dir, complete=outcome.complete) if plan.is_root else ():
        tell(line)
    if not plan.is_root:
        tell(f"rank files: {outcome.run_dir}")
        tell(
            "merged curves and findings are on node 0"
            if outcome.complete
            else "not all of it has reached node 0; `crossrank merge` with the run folders of all nodes completes it"
        )
    return outcome.exit_code


def _required(name: str, command: list[str]) -> list[str]:
    if not command:
        raise UsageError(f"no msrun after --; write: crossrank {name} [options] -- msrun [options] train.py")
    return command


def _key_of_environment() -> Path | None:
    name = os.environ.get(KEY_VARIABLE)
    return Path(name) if name else None


def _demo(options: argparse.Namespace, _: list[str]) -> int:
    from launch.demo.command import demo

    return demo(options.logdir, healthy=options.healthy, tensorboard=options.tensorboard)


def _tensorboard(options: argparse.Namespace, arguments: list[str]) -> int:
    from launch.tensorboard import open_tensorboard

    return open_tensorboard(options.folder, per_rank_view=options.per_rank_view, arguments=arguments)


def _merge(options: argparse.Namespace, _: list[str]) -> int:
    from launch.merge import merge
    from launch.plan import check_layout

    return merge(
        options.folders,
        output=options.output,
        detect=options.detect,
        layout=check_layout(options.layout, world_size=None),
    )


def _serve(options: argparse.Namespace, _: list[str]) -> int:
    from aggregator.run import ServeOptions, serve
    from launch.plan import check_layout, check_tuning, check_webhook

    if options.world_size is not None and options.world_size < 1:
        raise UsageError(f"--world-size must be at least 1, not {options.world_size}")
    layout = check_layout(options.layout, world_size=options.world_size)
    check_webhook(options.webhook)
    check_tuning(max_wait_seconds=options.max_wait, max_lag_steps=options.max_lag, detect=options.detect)
    return serve(
        ServeOptions(
            run_dir=options.run_dir,
            bind=tuple(options.bind),
            world_size=options.world_size,
            max_wait_seconds=options.max_wait,
            max_lag_steps=options.max_lag,
            ready_fd=options.ready_fd,
            lifeline_fd=options.lifeline_fd,
            detect=tuple(options.detect),
            layout=layout,
            webhook=options.webhook,
            stop_on_nonfinite=options.stop_on_nonfinite,
            key=options.key,
            insecure=options.insecure,
        )
    )


def _relay(options: argparse.Namespace, _: list[str]) -> int:
    from aggregator.relay import RelayOptions, relay

    return relay(
        RelayOptions(
            bind=tuple(options.bind),
            upstream=options.upstream,
            key=options.key,
            insecure=options.insecure,
            ready_fd=options.ready_fd,
            lifeline_fd=options.lifeline_fd,
        )
    )


def _overhead(options: argparse.Namespace, command: list[str]) -> int:
    from launch.overhead import overhead

    command = _required(options.command, command)
    return overhead(command, steps=options.steps, repeat=options.repeat, environment=os.environ)


def _keygen(options: argparse.Namespace, _: list[str]) -> int:
    from launch.keygen import keygen

    return keygen(options.file)


_COMMANDS = {
    "run": _run,
    "demo": _demo,
    "tensorboard": _tensorboard,
    "merge": _merge,
    "serve": _serve,
    "relay": _relay,
    "keygen": _keygen,
    "overhead": _overhead,
}

if __name__ == "__main__":
    sys.exit(main())
