"""The sidecar hands signals and exit codes through, waits for all that the command left, and never harms it.

The commands here are small programs in place of msrun, where msrun is not the point; the aggregator is real.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
from typing import TYPE_CHECKING

import pytest
from workshop import wait_until

if TYPE_CHECKING:
    from workshop import Workshop

# Says `ready` by a file, counts SIGINTs, and ends on SIGTERM with their number as its exit code.
_COUNTS_SIGINT = """
import pathlib, signal, sys
count = 0
def on_int(*_):
    global count
    count += 1
    pathlib.Path("interrupted").touch()
signal.signal(signal.SIGINT, on_int)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(count))
pathlib.Path("ready").touch()
while True:
    signal.pause()
"""

# As msrun without --join: starts a worker in a session of its own, and returns at once.
_LEAVES_WORKER = """
import subprocess, sys
subprocess.Popen([sys.executable, "worker.py"], start_new_session=True)
"""

# As msrun with --join=True: dies of SIGTERM without a word to its worker.
_STAYS_WITH_WORKER = _LEAVES_WORKER + "import signal; signal.pause()\n"

_WORKER_UNTIL_GO = """
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.02)
pathlib.Path("finished").touch()
"""

_WORKER_UNTIL_SIGTERM = """
import pathlib, signal, sys
def on_term(*_):
    pathlib.Path("terminated").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, on_term)
pathlib.Path("ready").touch()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("code", [0, 1, 2, 77])
def test_exit_code_of_the_command_is_passed_through(workshop: Workshop, code: int) -> None:
    assert workshop.run("run", "--", "sh", "-c", f"exit {code}").returncode == code


def test_a_command_killed_by_a_signal_gives_128_plus_its_number(workshop: Workshop) -> None:
    assert workshop.run("run", "--", "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


def test_a_program_that_cannot_be_executed_gives_126(workshop: Workshop) -> None:
    program = workshop.folder / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    done = workshop.run("run", "--", str(program))
    assert done.returncode == 126
    assert "cannot start" in done.stderr


def test_workers_are_told_a_private_socket_and_the_run_folder(workshop: Workshop) -> None:
    command = workshop.script(
        "show.py",
        "import json, os, pathlib, stat\n"
        "told = {k: v for k, v in os.environ.items() if k.startswith('CROSSRANK_')}\n"
        "socket = pathlib.Path(told['CROSSRANK_ENDPOINT'].removeprefix('ipc://'))\n"
        "told['mode'] = stat.S_IMODE(socket.parent.stat().st_mode)\n"
        "told['length'] = len(os.fsencode(socket))\n"
        "told['is_socket'] = socket.is_socket()\n"
        "pathlib.Path('told').write_text(json.dumps(told))\n",
    )
    done = workshop.run("run", "--logdir", "logs", "--run-name", "mine", "--", *command)
    assert done.returncode == 0, done.stderr
    told = json.loads((workshop.folder / "told").read_text())
    assert told["CROSSRANK_RUN_DIR"] == str(workshop.folder / "logs" / "mine")
    assert told["mode"] == 0o700
    assert told["is_socket"]
    assert told["length"] <= 107
    assert not list(workshop.sockets.iterdir()), "the socket's folder was left behind"


def test_two_runs_of_one_second_get_two_folders(workshop: Workshop) -> None:
    for _ in range(2):
        assert workshop.run("run", "--name-with", "lr=1", "--", "true").returncode == 0
    assert len(list((workshop.folder / "runs").iterdir())) == 2


def test_a_run_that_is_going_on_is_not_joined_by_a_second_one(workshop: Workshop) -> None:
    process = workshop.start(
        "run", "--run-name", "mine", "--", *workshop.script("worker.py", _WORKER_UNTIL_GO)
    )
    wait_until(workshop.aggregators)
    done = workshop.run("run", "--run-name", "mine", "--", "true")
    assert done.returncode == 2
    assert "still going on" in done.stderr
    (workshop.folder / "go").touch()
    assert process.wait(60) == 0
    assert workshop.run("run", "--run-name", "mine", "--", "true").returncode == 0


def test_a_reader_of_the_output_that_has_gone_does_not_change_the_exit_code(workshop: Workshop) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = workshop.start("run", "--", "sh", "-c", "exit 4", stdout=writing)
    os.close(writing)
    assert process.wait(60) == 4


def test_a_signal_sent_to_the_launcher_reaches_the_command_once(workshop: Workshop) -> None:
    process = workshop.start("run", "--", *workshop.script("count.py", _COUNTS_SIGINT))
    wait_until((workshop.folder / "ready").exists)
    process.send_signal(signal.SIGINT)
    wait_until((workshop.folder / "interrupted").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1


def test_ctrl_c_of_the_terminal_reaches_the_command_once(workshop: Workshop) -> None:
    """The terminal sends it to the command itself; a second one would come before the SIGTERM."""
    command = workshop.script("count.py", _COUNTS_SIGINT)
    master, slave = pty.openpty()
    process = workshop.start(
        "run",
        "--",
        *command,
        stdin=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        wait_until((workshop.folder / "ready").exists)
        os.write(master, b"\x03")
        wait_until((workshop.folder / "interrupted").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    finally:
        os.close(master)
        os.close(slave)


def test_what_the_command_left_running_is_waited_for(workshop: Workshop) -> None:
    workshop.script("worker.py", _WORKER_UNTIL_GO)
    process = workshop.start("run", "--", *workshop.script("leave.py", _LEAVES_WORKER))
    wait_until(lambda: "waiting for the processes it left" in workshop.stderr)
    assert process.poll() is None
    assert workshop.aggregators()
    (workshop.folder / "go").touch()
    assert process.wait(60) == 0
    assert (workshop.folder / "finished").exists()


def test_sigterm_reaches_a_worker_whose_launcher_has_returned(workshop: Workshop) -> None:
    workshop.script("worker.py", _WORKER_UNTIL_SIGTERM)
    process = workshop.start("run", "--", *workshop.script("leave.py", _LEAVES_WORKER))
    wait_until((workshop.folder / "ready").exists)
    wait_until(lambda: "waiting for the processes it left" in workshop.stderr)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert (workshop.folder / "terminated").exists()


def test_sigterm_reaches_a_worker_whose_launcher_dies_of_it(workshop: Workshop) -> None:
    workshop.script("worker.py", _WORKER_UNTIL_SIGTERM)
    process = workshop.start("run", "--", *workshop.script("stay.py", _STAYS_WITH_WORKER))
    wait_until((workshop.folder / "ready").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert (workshop.folder / "terminated").exists()


def test_a_follower_of_a_log_file_is_ended_not_waited_for(workshop: Workshop) -> None:
    """msrun with --join=True follows its workers' logs with `tail -f`, which outlives a killed msrun."""
    (workshop.folder / "log").touch()
    done = workshop.run("run", "--", "sh", "-c", "tail -f log & exit 3")
    assert done.returncode == 3


def test_a_killed_aggregator_is_replaced_and_the_command_does_not_notice(workshop: Workshop) -> None:
    process = workshop.start("run", "--", *workshop.script("worker.py", _WORKER_UNTIL_GO))
    wait_until(workshop.aggregators)
    (first,) = workshop.aggregators()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: workshop.aggregators() not in ([], [first]))
    (workshop.folder / "go").touch()
    assert process.wait(60) == 0
    assert (workshop.folder / "finished").exists()
    assert workshop.stderr.count("the aggregator was killed by SIGKILL") == 1


def test_an_aggregator_that_cannot_start_does_not_stop_the_command(workshop: Workshop) -> None:
    broken = workshop.folder / "broken" / "zmq"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken on purpose')\n")
    done = workshop.run("run", "--", "sh", "-c", "exit 5", more={"PYTHONPATH": str(broken.parent)})
    assert done.returncode == 5
    assert "the aggregator ended with exit code 1" in done.stderr
    assert "did not finish" in done.stdout


def test_a_module_of_the_training_project_does_not_replace_ours(workshop: Workshop) -> None:
    for name in ("launch.py", "aggregator.py", "rankside.py"):
        (workshop.folder / name).write_text("raise RuntimeError('this is the training project')\n")
    done = workshop.run("run", "--", "true")
    assert done.returncode == 0
    assert "did not finish" not in done.stdout, done.stderr


def test_a_killed_launcher_leaves_training_running_and_then_no_process(workshop: Workshop) -> None:
    process = workshop.start("run", "--", *workshop.script("worker.py", _WORKER_UNTIL_GO))
    wait_until(
        lambda: any("worker.py" in line and "run --" not in line for line in workshop.processes().values())
    )
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert any("worker.py" in line for line in workshop.processes().values())
    (workshop.folder / "go").touch()
    wait_until(lambda: not workshop.processes())
    assert (workshop.folder / "finished").exists()
    assert not list(workshop.sockets.iterdir()), "the socket's folder was left behind"


def test_sigterm_before_the_command_starts_starts_nothing(workshop: Workshop) -> None:
    """The aggregator is held back by a fifo in a package that it imports, so that the signal comes in time."""
    held = workshop.folder / "held" / "zmq"
    held.mkdir(parents=True)
    os.mkfifo(held / "fifo")
    (held / "__init__.py").write_text(f"open({str(held / 'fifo')!r}).read()\n")
    workshop.environment["PYTHONPATH"] = str(held.parent)
    process = workshop.start("run", "--", "touch", "started")
    with (held / "fifo").open("w"):  # opens once the aggregator reads it
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "finishing" in workshop.stderr or process.poll() is not None, seconds=60)
        (held / "__init__.py").write_text("")  # the next aggregator is not held back
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not (workshop.folder / "started").exists()


def test_the_terminal_is_given_back_with_its_signals(workshop: Workshop) -> None:
    """The command starts with no signal blocked, as under a shell."""
    shown = subprocess.check_output(["grep", "SigBlk", "/proc/self/status"], text=True)
    done = workshop.run("run", "--", "grep", "SigBlk", "/proc/self/status")
    assert shown in done.stdout
