"""What `crossrank run` is about to do, checked whole before the first folder is made.

A plan that `RunPlan.checked` returns can be carried out as far as anybody can tell beforehand; whatever is
wrong is raised as `UsageError` while nothing has been created.
"""

from __future__ import annotations

import ipaddress
import math
import os
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from launch.errors import UsageError
from launch.msrun import msrun_layout
from launch.root_endpoint import listening_endpoint, root_endpoint
from rankside import layout as layouts
from rankside.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


_NAME_LIMIT_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A checked run.

    command: the training command, its program resolved to a path.
    logdir: the absolute folder that holds the runs. run_name: the folder of this run in it.
    name_is_fixed: the user chose the name, so an existing folder is continued; else a free one is made of it.
    bind: `tcp://<loopback address>:<port>`, or None for a socket in a private folder.
    world_size: the number of ranks as far as the command tells, else None.
    max_wait_seconds, max_lag_steps: how long the ranks of a step wait for the missing ones.
    detect: thresholds of detection, NAME=VALUE each. layout: sizes of the parallel layout.
    webhook: address to which findings are posted.
    stop_on_nonfinite: whether training is asked to stop after a loss that is not finite.
    attach: whether workers are recorded without a RankMonitor in the script.
    root: where the root listens for the other nodes; None on one node. is_root: whether it runs on this one.
    key: key file. insecure: whether plain TCP was asked for.
    """

    command: tuple[str, ...]
    logdir: Path
    run_name: str
    name_is_fixed: bool
    bind: str | None
    world_size: int | None
    max_wait_seconds: float
    max_lag_steps: int
    detect: tuple[str, ...] = ()
    layout: str | None = None
    webhook: str | None = None
    stop_on_nonfinite: bool = False
    attach: bool = True
    root: str | None = None
    is_root: bool = True
    key: Path | None = None
    insecure: bool = False

    @classmethod
    def checked(
        cls,
        *,
        command: Sequence[str],
        logdir: Path,
        run_name: str | None,
        name_parts: Sequence[str],
        time_stamp: str,
        bind: str | None,
        max_wait_seconds: float,
        max_lag_steps: int,
        detect: Sequence[str] = (),
        layout: str | None = None,
        webhook: str | None = None,
        stop_on_nonfinite: bool = False,
        attach: bool = True,
        port: int | None = None,
        key: Path | None = None,
        insecure: bool = False,
    ) -> RunPlan:
        """Return the plan for these options, or raise UsageError.

        command: not empty. port: of the root, for the other nodes; None takes the one after msrun's own.
        run_name: the user's own name; None makes one of `time_stamp` and the `name_parts` (KEY=VALUE each).
        """
        check_tuning(max_wait_seconds=max_wait_seconds, max_lag_steps=max_lag_steps, detect=detect)
        program = _resolved_command(command)
        ranks = msrun_layout(command)
        check_key(key)
        root = None
        if ranks is not None and ranks.many_nodes:
            root = root_endpoint(ranks, port=port, secured=insecure or key is not None)
            if ranks.is_master:
                root = listening_endpoint(root)
        check_layout(layout, world_size=None if ranks is None else ranks.worker_num)
        if port is not None and not 0 < port < 65536:
            raise UsageError(f"--port must be from 1 to 65535, not {port}")
        if run_name is not None and name_parts:
            raise UsageError(
                "--name-with adds to the default name; with --run-name, write it into the name itself"
            )
        name = run_name if run_name is not None else "_".join([time_stamp, *_checked_parts(name_parts)])
        check_run_name(name)
        absolute = Path(os.path.abspath(logdir))  # noqa: PTH100 - resolve() would follow the user's links
        _check_writable(absolute / name)
        return cls(
            command=program,
            logdir=absolute,
            run_name=name,
            name_is_fixed=run_name is not None,
            bind=None if bind is None else _checked_bind(bind),
            world_size=ranks.worker_num if ranks is not None else None,
            max_wait_seconds=max_wait_seconds,
            max_lag_steps=max_lag_steps,
            detect=tuple(detect),
            layout=layout,
            webhook=check_webhook(webhook),
            stop_on_nonfinite=stop_on_nonfinite,
            attach=attach,
            root=root,
            is_root=ranks is None or not ranks.many_nodes or ranks.is_master,
            key=None if key is None else key.absolute(),
            insecure=insecure,
        )


def check_layout(text: str | None, *, world_size: int | None) -> dict[str, int] | None:
    """Return the sizes in the text, None for none; raise UsageError for what is no layout of so many ranks."""
    if text is None:
        return None
    try:
        sizes = layouts.parse(text)
    except ValueError as error:
        raise UsageError(f"--layout {error}") from None
    ranks = math.prod(sizes.get(name, 1) for name in layouts.ORDER)
    if world_size is not None and ranks != world_size:
        raise UsageError(f"--layout {text} is one of {ranks} ranks, but there are {world_size}")
    return sizes


def check_key(key: Path | None) -> None:
    """Raise UsageError for a key file that cannot be used."""
    if key is not None:
        from rankside import keys  # noqa: PLC0415 (it brings ZeroMQ, which a plain start does without)

        try:
            keys.load(key)
        except ConfigError as error:
            raise UsageError(f"--key: {error}") from None


def check_tuning(*, max_wait_seconds: float, max_lag_steps: int, detect: Sequence[str]) -> None:
    """Raise UsageError for a wait, a lag or a threshold that the aggregator cannot use."""
    if not max_wait_seconds > 0:
        raise UsageError(f"--max-wait must be more than 0 seconds, not {max_wait_seconds:g}")
    if max_lag_steps < 1:
        raise UsageError(f"--max-lag must be at least 1 step, not {max_lag_steps}")
    if detect:
        # Only here, because it brings numpy, which a plain start does without.
        from aggregator.detect import DetectionSettings  # noqa: PLC0415

        try:
            DetectionSettings.from_pairs(detect)
        except ValueError as error:
            raise UsageError(f"--detect {error}") from None


def check_run_name(name: str) -> None:
    """Raise UsageError unless `name` is safe as the name of one folder."""
    reason = None
    if not name.strip():
        reason = "is empty"
    elif "/" in name or "\\" in name:
        reason = "holds a path separator"
    elif ".." in name:
        reason = "holds '..'"
    elif name.startswith("."):
        reason = "starts with a dot"
    elif not name.isprintable():
        reason = "holds control characters"
    elif len(os.fsencode(name)) > _NAME_LIMIT_BYTES:
        reason = f"is longer than {_NAME_LIMIT_BYTES} bytes"
    if reason is not None:
        raise UsageError(f"the run name {name[:_NAME_LIMIT_BYTES]!r} {reason}; choose a plain folder name")


def _resolved_command(command: Sequence[str]) -> tuple[str, ...]:
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"there is no program {command[0]!r} after --; is it on PATH and executable?")
    return (program, *command[1:])


def _checked_parts(parts: Sequence[str]) -> Sequence[str]:
    for part in parts:
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise UsageError(f"--name-with takes KEY=VALUE, not {part!r}")
    return parts


def check_webhook(url: str | None) -> str | None:
    """Return the address; raise UsageError unless findings can be posted to one of its kind."""
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"--webhook takes an address like https://host/path, not {url!r}")
    return url


def _check_writable(run_dir: Path) -> None:
    """Raise UsageError unless `run_dir` exists as a writable folder or can be made; only trying tells."""
    nearest = run_dir
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise UsageError(f"cannot write the run to {run_dir}: {nearest} is not a folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".crossrank-", dir=nearest):
            pass
    except OSError as error:
        raise UsageError(f"cannot write the run to {run_dir}: {nearest}: {error.strerror}") from None


def _checked_bind(bind: str) -> str:
    """Return the endpoint with its port filled in, after trying that the port is free."""
    scheme, separator, address = bind.partition("://")
    host, colon, port = address.rpartition(":")
    if scheme != "tcp" or not separator or not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--bind takes tcp://ADDRESS:PORT, not {bind!r}")
    try:
        parsed = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        raise UsageError(f"--bind needs a numeric address or localhost, not {host!r}") from None
    if not parsed.is_loopback:
        raise UsageError(
            f"--bind {bind} would open an unprotected port to the network; use a loopback address"
        )
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((str(parsed), int(port)))
        except OSError as error:
            raise UsageError(f"cannot listen on {bind}: {error.strerror}; choose another port") from None
        free_port = probe.getsockname()[1]
    return f"tcp://[{parsed}]:{free_port}" if parsed.version == 6 else f"tcp://{parsed}:{free_port}"
