"""The aggregator beside a training command, from before its first process until after its last.

Training comes first: once the command runs, no failure of the aggregator stops it, delays it or changes its
exit code; such failures are said in one line each. The launcher itself is one thread that waits for signals
(ended children among them), so that it takes no time from the training.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aggregator.sinks import run_file
from launch.aggregator_process import AggregatorProcess
from launch.arguments import relay_arguments, serve_arguments
from launch.errors import UsageError
from launch.plan import check_run_name
from launch.processes import become_subreaper, children, program_name, reap, send, start
from launch.run_folders import lock_run_dir, make_run_dir, private_endpoint
from launch.terminal import say
from launch.worker_environment import worker_environment
from rankside.config import ENDPOINT_VARIABLE, RUN_DIR_VARIABLE
from rankside.run_record import run_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launch.plan import RunPlan
    from launch.processes import Ended

_FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM})
_WATCHED = _FORWARDED | {signal.SIGCHLD}
_LISTEN_LIMIT_SECONDS = 30.0
_ROOT_LIMIT_SECONDS = 300.0  # nodes of a job may start minutes apart
_FINISH_LIMIT_SECONDS = 600.0
_KILL_AFTER_SECONDS = 10.0
# An adopted process announces itself by no signal: how often to look for one once the command has ended.
_LOOK_SECONDS = 1.0
# msrun starts one `tail -f` a worker; they never end by themselves when msrun is killed.
_FOLLOWERS = frozenset({"tail"})


class Outcome(NamedTuple):
    """exit_code: the command's own, or 128 plus the signal that ended it. complete: all files are closed."""

    exit_code: int
    run_dir: Path
    complete: bool


def run_with_sidecar(plan: RunPlan, environment: Mapping[str, str]) -> Outcome:
    """Carry out the plan; return when the command and all that it left running have ended.

    environment: of the command; where to report is added. Raises UsageError before the command is started.
    """
    with ExitStack() as stack:
        endpoint = plan.bind or stack.enter_context(private_endpoint())
        run_dir, lock = _enter_run(plan, stack) if plan.is_root else (None, ())
        stack.enter_context(_signals_blocked())
        arguments = (
            relay_arguments(plan, endpoint) if run_dir is None else serve_arguments(plan, run_dir, endpoint)
        )
        aggregator = AggregatorProcess(arguments, environment=os.environ, inherit_fds=lock)
        stack.callback(aggregator.close)
        told = worker_environment(environment, plan, endpoint)
        return _Sidecar(plan, run_dir, aggregator, told).run()


def _enter_run(plan: RunPlan, stack: ExitStack) -> tuple[Path, tuple[int, ...]]:
    """Make the run's folder and claim it; return it and the descriptors that hold the claim."""
    run_dir = make_run_dir(plan.logdir, plan.run_name, name_is_fixed=plan.name_is_fixed)
    lock = lock_run_dir(run_dir)
    stack.callback(os.close, lock)
    try:
        path = run_dir / "run.json"
        entries = {**run_file.read(path), **run_record(run_dir.name, plan.command, now=time.time())}
        run_file.publish(path, json.dumps(entries, indent=2))
    except OSError as error:
        say(f"cannot write run.json: {error.strerror}; training goes on without it")
    return run_dir, (lock,)


class _Sidecar:
    def __init__(
        self,
        plan: RunPlan,
        run_dir: Path | None,
        aggregator: AggregatorProcess,
        environment: Mapping[str, str],
    ) -> None:
        self._plan = plan
        self._command = plan.command
        self._run_dir = run_dir
        self._aggregator = aggregator
        self._environment = environment
        self._adopts = become_subreaper()
        self._command_pid: int | None = None
        self._exit_code: int | None = None
        self._last_signal: int | None = None
        self._waited_for: set[int] = set()
        self._failed_left_behind = 0

    def run(self) -> Outcome:
        self._start_aggregator()
        stopped_by = self._wait_until_listening()
        if self._run_dir is None:
            self._run_dir = self._join_run()
        if stopped_by is not None:
            self._exit_code = 128 + stopped_by
        else:
            self._start_command()
            self._attend()
        complete = self._finish()
        if self._exit_code is None or self._run_dir is None:
            raise AssertionError
        return Outcome(self._exit_code, self._run_dir, complete)

    def _start_aggregator(self) -> None:
        try:
            self._aggregator.start(time.monotonic())
        except OSError as error:
            say(f"cannot start the aggregator: {error.strerror}; training goes on without it")

    def _wait_until_listening(self) -> int | None:
        """Return the signal that came meanwhile, if one did."""
        limit_seconds = _LISTEN_LIMIT_SECONDS if self._plan.is_root else _ROOT_LIMIT_SECONDS
        deadline = time.monotonic() + limit_seconds
        next_line = time.monotonic() + _LISTEN_LIMIT_SECONDS
        while self._aggregator.pid is not None and not self._aggregator.poll_listening():
            if time.monotonic() > deadline:
                where = "" if self._plan.is_root else f" at {self._plan.root}"
                say(f"the aggregator{where} is not up after {limit_seconds:g} s; training starts anyway")
                break
            if time.monotonic() > next_line:
                say(f"waiting for node 0 at {self._plan.root}, at most {limit_seconds:g} s")
                next_line = deadline
            received = signal.sigtimedwait(_WATCHED, 0.05)
            if received is not None and received.si_signo in _FORWARDED:
                return received.si_signo
            self._reap()
        return None

    def _join_run(self) -> Path:
        """Make this node's folder of the run that the root has named, or of a run of its own where it has not."""
        logdir, own = self._plan.logdir, self._plan.run_name
        said = self._aggregator.said[1:]
        if not said:
            return make_run_dir(logdir, own, name_is_fixed=self._plan.name_is_fixed)
        try:
            check_run_name(said[0])  # it came from another machine
        except UsageError as error:
            say(f"node 0 gives the run a name that cannot be used here ({error}); on this node it is {own}")
            return make_run_dir(logdir, own, name_is_fixed=self._plan.name_is_fixed)
        return make_run_dir(logdir, said[0], name_is_fixed=True)

    def _start_command(self) -> None:
        environment = {**self._environment, RUN_DIR_VARIABLE: str(self._run_dir)}
        if self._aggregator.refused:
            del environment[ENDPOINT_VARIABLE]  # then the ranks write their files and wait for nobody
        try:
            self._command_pid = start(self._command, environment=environment)
        except OSError as error:
            say(f"cannot start {self._command[0]}: {error.strerror}")
            self._exit_code = 126

    def _attend(self) -> None:
        """Return when the command and everything that it left running have ended."""
        announced = False
        while True:
            self._reap()
            self._restart_aggregator()
            if self._exit_code is not None:
                left_behind = self._left_behind()
                if not left_behind:
                    break
                self._waited_for |= left_behind
                if not announced:
                    announced = True
                    name = Path(self._command[0]).name
                    say(f"{name} has ended; waiting for the processes it left: {_listed(left_behind)}")
            received = signal.sigtimedwait(_WATCHED, self._patience_seconds())
            if received is not None and received.si_signo in _FORWARDED:
                self._forward(received)
        for pid in self._adopted():
            send(pid, signal.SIGTERM)
        if self._failed_left_behind:
            say(f"{self._failed_left_behind} of the processes that were left running ended with an error")

    def _patience_seconds(self) -> float:
        waits = [3600.0]
        restart = self._aggregator.seconds_to_restart(time.monotonic())
        if restart is not None:
            waits.append(restart)
        if self._exit_code is not None:
            waits.append(_LOOK_SECONDS)
        return min(waits)

    def _forward(self, received: signal.struct_siginfo) -> None:
        """Hand a signal on to whom it has not reached."""
        self._last_signal = received.si_signo
        if self._command_pid is None:
            self._exit_code = 128 + received.si_signo
            self._signal_adopted(received.si_signo)
            return
        # A positive code says that the kernel sent it: the terminal's Ctrl-C, which the command got as well.
        if received.si_code <= 0:
            send(self._command_pid, received.si_signo)

    def _signal_adopted(self, signal_number: int) -> None:
        for pid in self._adopted():
            send(pid, signal_number)

    def _reap(self) -> None:
        for ended in reap():
            if ended.pid == self._aggregator.pid:
                say(self._aggregator.ended(ended, time.monotonic()))
            elif ended.pid == self._command_pid:
                self._command_ended(ended)
            elif ended.code and ended.pid in self._waited_for:
                self._failed_left_behind += 1

    def _command_ended(self, ended: Ended) -> None:
        self._command_pid = None
        self._exit_code = ended.code
        if self._last_signal is not None:
            # msrun dies of SIGTERM without telling its workers, which have left its process group.
            self._signal_adopted(self._last_signal)

    def _adopted(self) -> set[int]:
        return children() - {self._aggregator.pid} - {self._command_pid}

    def _left_behind(self) -> set[int]:
        if not self._adopts:
            return set()
        return {pid for pid in self._adopted() if program_name(pid) not in _FOLLOWERS}

    def _restart_aggregator(self) -> None:
        try:
            self._aggregator.restart_when_due(time.monotonic())
        except OSError as error:
            say(f"cannot start the aggregator: {error.strerror}; training goes on without it")

    def _finish(self) -> bool:
        """Wait for the aggregator to close its files; return whether it did. One that dies over it gets a successor."""
        self._aggregator.close_lifeline()
        if self._aggregator.pid is None and self._plan.is_root:
            # It crashed and was not due again: one more, for what the rank files hold.
            self._start_aggregator()
        started = time.monotonic()
        next_line = started + 2
        stop_by = started + _FINISH_LIMIT_SECONDS
        kill_by: float | None = None
        died_before = False
        while self._aggregator.pid is not None:
            received = signal.sigtimedwait(_WATCHED, 0.5)
            for ended in reap():
                if ended.pid != self._aggregator.pid:
                    continue
                self._aggregator.pid = None
                if ended.code == 0:
                    return True
                say(f"the {self._aggregator.name} {ended.how} before everything was in its place")
                # A relay keeps nothing that its successor could hand over once the ranks have left.
                if not self._plan.is_root or died_before or kill_by is not None:
                    return False
                died_before = True
                self._start_aggregator()
            now = time.monotonic()
            interrupted = received is not None and received.si_signo in _FORWARDED
            if kill_by is None and (interrupted or now > stop_by):
                say(
                    "stopping the aggregator"
                    if interrupted
                    else f"stopping the aggregator after {_FINISH_LIMIT_SECONDS:g} s"
                )
                self._aggregator.stop()
                kill_by = now + _KILL_AFTER_SECONDS
            elif kill_by is not None and (interrupted or now > kill_by):
                self._aggregator.stop(force=True)
            elif now > next_line:
                say(f"the {self._aggregator.name} is finishing ({now - started:.0f} s)")
                next_line = now + 30
        return False


def _listed(pids: set[int]) -> str:
    return ", ".join(map(str, sorted(pids)))


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold back the watched signals, so that they are taken one by one where they can be acted upon."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
