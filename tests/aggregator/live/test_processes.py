"""When processes of this machine ended, asked of real ones."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aggregator.live.processes import Processes
from rankside.machine import machine_name

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.closing(Processes()) as watching:
        yield watching


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_poller_wakes_when_a_process_ends_and_it_is_known_when(
    processes: Processes, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    first, second = (process.pid for process in sleepers)
    assert processes.ended(first, now=1.0) is None
    assert processes.ended(second, now=1.0) is None
    sleepers[1].kill()
    assert select.select([processes.descriptor], [], [], 30)[0]
    processes.look(now=2.0)
    assert not select.select([processes.descriptor], [], [], 0)[0]
    sleepers[0].kill()
    assert select.select([processes.descriptor], [], [], 30)[0]
    processes.look(now=3.0)
    assert [processes.ended(pid, now=9.0) for pid in (first, second)] == [3.0, 2.0]


def test_a_process_that_had_ended_before_the_first_question_ended_now(processes: Processes) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert processes.ended(process.pid, now=1.0) == 1.0
    assert processes.ended(process.pid, now=2.0) == 1.0


def test_without_process_descriptors_an_end_is_found_by_looking_it_up(
    processes: Processes, sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, "as a kernel before 5.3 does")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert processes.ended(sleepers[0].pid, now=1.0) is None
    processes.look(now=2.0)
    sleepers[0].kill()
    sleepers[0].wait()
    processes.look(now=2.5)
    assert processes.ended(sleepers[0].pid, now=2.5) is None
    processes.look(now=3.0)
    assert processes.ended(sleepers[0].pid, now=4.0) == 3.0


def test_a_number_that_the_kernel_gives_to_another_process_is_watched_again(
    processes: Processes, sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = sleepers[0].pid
    with monkeypatch.context() as before:
        before.setattr("aggregator.live.processes.runs", lambda _: False)
        assert processes.ended(pid, now=1.0) == 1.0
    assert processes.ended(pid, now=2.0) is None
    sleepers[0].kill()
    assert select.select([processes.descriptor], [], [], 30)[0]
    processes.look(now=3.0)
    assert processes.ended(pid, now=4.0) == 3.0


def test_a_pid_namespace_is_a_machine_of_its_own() -> None:
    program = "from rankside.machine import machine_name; print(machine_name())"
    command = [sys.executable, "-c", program]
    namespace = ["unshare", "--pid", "--fork", "--mount-proc"]
    apart = subprocess.run([*namespace, *command], capture_output=True, text=True, check=False)
    if apart.returncode:
        pytest.skip("a PID namespace of its own needs the right to make one")
    together = subprocess.run(command, capture_output=True, text=True, check=True)
    assert together.stdout.strip() == machine_name() != apart.stdout.strip()
