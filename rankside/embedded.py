"""Finds the run, and starts the aggregator from rank 0 where no launcher has done it: the embedded default.

The ranks of one job share the address of msrun's scheduler. Rank 0 makes the run folder, starts the aggregator
as a process of its own, and publishes where both are in a file under that address, in a folder that only its
owner can enter. The other ranks wait for that file. It names rank 0's process, so that a file which an earlier
job left behind is not believed.

The aggregator holds one end of a pipe to rank 0: when rank 0 is gone, however it went, the aggregator finishes
as soon as the other ranks have left.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rankside.errors import TransportError
from rankside.private_socket import make_private_endpoint, remove_private_endpoint
from rankside.python_program import python_program
from rankside.run_record import run_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankside.config import RankConfig

_START_SECONDS = 60.0
_RENDEZVOUS_SECONDS = 120.0
_POLL_SECONDS = 0.1


class Location(NamedTuple):
    """Where this rank's run is.

    endpoint: None where values are recorded to files only. aggregator: what this rank has started. trouble: why
    there is none, where there should be one, or "".
    """

    run_dir: Path
    endpoint: str | None
    aggregator: Aggregator | None = None
    trouble: str = ""


class Aggregator(NamedTuple):
    """The aggregator process that this rank started. lifeline: the pipe whose closing tells it to finish."""

    process: subprocess.Popen[bytes]
    lifeline: int


def locate(config: RankConfig, *, give_up: Callable[[], bool]) -> Location:
    """Return where the run is, starting the aggregator where it is this rank's turn to.

    Blocks until it is known; `give_up` is asked now and then whether to stop waiting. Raises
    `TransportError` when rank 0 does not say where it is, and OSError when no folder can be made.
    """
    if config.run_dir is not None:
        return Location(config.run_dir, config.endpoint)
    if config.rank == 0:
        location = _start(config, give_up)
        if config.scheduler:
            _publish(config.scheduler, location)
        return location
    return _wait_for_rank_0(config, give_up)


def release(location: Location) -> None:
    """Let the aggregator that this rank has started, if any, finish once the other ranks have left."""
    if location.aggregator is not None:
        os.close(location.aggregator.lifeline)


def unjoined_folder(config: RankConfig) -> Path:
    """Return the run folder for ranks that could not learn where their run is; the same on all of them."""
    name = config.scheduler.replace(":", "_") or "single"
    return config.logdir / f"unjoined-{name}"


def make_run_folder(logdir: Path, *, now: float) -> Path:
    """Make and return a folder for a run that starts now, one that no other process has; raises OSError."""
    logdir.mkdir(parents=True, exist_ok=True)
    name = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    for number in itertools.count(1):
        run_dir = logdir / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            run_dir.mkdir()
            break
    return run_dir


def _start(config: RankConfig, give_up: Callable[[], bool]) -> Location:
    now = time.time()
    run_dir = make_run_folder(config.logdir, now=now)
    try:
        entries = run_record(run_dir.name, sys.orig_argv, now=now)
        (run_dir / "run.json").write_text(json.dumps(entries, indent=2))
        return _start_aggregator(run_dir, config.world_size, give_up)
    except (OSError, TransportError) as error:
        return Location(run_dir, None, trouble=str(error))


def _start_aggregator(run_dir: Path, world_size: int, give_up: Callable[[], bool]) -> Location:
    """Start the aggregator and wait until it is up; where `give_up` comes first, it merges what the files hold."""
    endpoint = make_private_endpoint()
    with ExitStack() as where_it_fails, ExitStack() as in_any_case, ExitStack() as once_started:
        where_it_fails.callback(remove_private_endpoint, endpoint)
        ready_read, ready_write = _pipe(in_any_case, once_started)
        lifeline_read, lifeline_write = _pipe(once_started, where_it_fails)
        options = ["--run-dir", str(run_dir), "--bind", endpoint, "--world-size", str(world_size)]
        pipes = ["--ready-fd", str(ready_write), "--lifeline-fd", str(lifeline_read)]
        with (run_dir / "aggregator.log").open("ab") as log:
            process = subprocess.Popen(
                python_program("launch.cli", "main", "serve", *options, *pipes),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(ready_write, lifeline_read),
                start_new_session=True,
            )
        once_started.close()
        is_up = _wait_until_ready(ready_read, give_up)
        if is_up is None:
            raise TransportError(f"the aggregator did not start; {run_dir / 'aggregator.log'} says why")
        where_it_fails.pop_all()
    return Location(run_dir, endpoint if is_up else None, Aggregator(process, lifeline_write))


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _wait_until_ready(ready: int, give_up: Callable[[], bool]) -> bool | None:
    """Return whether the aggregator has said that it is up; None where it never will."""
    deadline = time.monotonic() + _START_SECONDS
    poll = select.poll()  # `select` takes no descriptor above 1023, and a training may have many
    poll.register(ready, select.POLLIN)
    while time.monotonic() < deadline:
        if poll.poll(1000 * _POLL_SECONDS):
            return True if os.read(ready, 4096) else None
        if give_up():
            return False
    return None


def _publish(scheduler: str, location: Location) -> None:
    path = _rendezvous_path(scheduler)
    content = {
        "run_dir": str(location.run_dir),
        "endpoint": location.endpoint,
        "pid": os.getpid(),
        "started": _process_start(os.getpid()),
    }
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(content))
    part.replace(path)


def _wait_for_rank_0(config: RankConfig, give_up: Callable[[], bool]) -> Location:
    path = _rendezvous_path(config.scheduler)
    deadline = time.monotonic() + _RENDEZVOUS_SECONDS
    while time.monotonic() < deadline and not give_up():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_text())
            if _process_start(int(content["pid"])) == content["started"]:
                return Location(Path(content["run_dir"]), content["endpoint"])
        time.sleep(_POLL_SECONDS)
    raise TransportError(
        f"rank 0 has not said where the run is; this rank's values are in {unjoined_folder(config)}, which `crossrank "
        "merge` takes as a second folder. `crossrank run -- msrun ...` needs no word of rank 0, and also works when it "
        "is on another machine"
    )


def _rendezvous_path(scheduler: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"crossrank-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or stat.S_IMODE(status.st_mode) & 0o077
    ):
        raise TransportError(f"{folder} must be a folder of yours with mode 0700; remove it")
    return folder / f"{scheduler.replace(':', '_').replace('/', '_')}.json"


def _process_start(pid: int) -> str:
    """Return what tells this process from a later one with the same number."""
    # The fields after the command, which is in parentheses and may contain spaces; the 22nd is the start time.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
