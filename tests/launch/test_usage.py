"""Wrong usage gets one clear line and exit code 2, and creates nothing."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from workshop import Workshop

_TRUE = ["--", "true"]
_SEVERAL_NODES = [
    *(
        "--",
        "msrun",
        "--worker_num=2",
        "--local_worker_num=1",
        "--node_rank=0",
        "--master_addr=192.0.2.1",
        "train.py",
    ),
]

_WRONG = {
    "no dashes": (["run", "msrun", "train.py"], "unrecognized arguments: msrun"),
    "no dashes and no command": (["run"], "no msrun after --"),
    "nothing after the dashes": (["run", "--"], "no msrun after --"),
    "no such program": (["run", "--", "no-such-program"], "no program 'no-such-program'"),
    "log folder below a file": (["run", "--logdir", "a-file/runs", *_TRUE], "is not a folder"),
    "log folder is a file": (["run", "--logdir", "a-file", *_TRUE], "is not a folder"),
    "log folder that cannot be made": (["run", "--logdir", "/proc/new/runs", *_TRUE], "cannot write"),
    "run name ..": (["run", "--run-name", "..", *_TRUE], "'..'"),
    "run name with .. inside": (["run", "--run-name", "a..b", *_TRUE], "'..'"),
    "run name that climbs": (["run", "--run-name", "../up", *_TRUE], "path separator"),
    "run name with a slash": (["run", "--run-name", "a/b", *_TRUE], "path separator"),
    "run name with a backslash": (["run", "--run-name", "a\\b", *_TRUE], "path separator"),
    "hidden run name": (["run", "--run-name", ".hidden", *_TRUE], "starts with a dot"),
    "empty run name": (["run", "--run-name", "", *_TRUE], "is empty"),
    "run name of two lines": (["run", "--run-name", "a\nb", *_TRUE], "control characters"),
    "long run name": (["run", "--run-name", "x" * 129, *_TRUE], "longer than 128 bytes"),
    "name part without a value": (["run", "--name-with", "lr", *_TRUE], "KEY=VALUE"),
    "name part with a slash": (["run", "--name-with", "data=a/b", *_TRUE], "path separator"),
    "endpoint of another kind": (["run", "--bind", "udp://127.0.0.1:5", *_TRUE], "tcp://ADDRESS:PORT"),
    "endpoint without a port": (["run", "--bind", "tcp://127.0.0.1", *_TRUE], "tcp://ADDRESS:PORT"),
    "port out of range": (["run", "--bind", "tcp://127.0.0.1:65536", *_TRUE], "tcp://ADDRESS:PORT"),
    "endpoint by host name": (["run", "--bind", "tcp://somewhere:0", *_TRUE], "numeric address"),
    "endpoint open to the network": (["run", "--bind", "tcp://0.0.0.0:0", *_TRUE], "loopback"),
    "address of another machine": (["run", "--bind", "tcp://192.0.2.1:0", *_TRUE], "loopback"),
    "no waiting": (["run", "--max-wait", "0", *_TRUE], "--max-wait"),
    "waiting for not a number": (["run", "--max-wait", "nan", *_TRUE], "--max-wait"),
    "lag of no step": (["run", "--max-lag", "0", *_TRUE], "--max-lag"),
    "lag that is no number": (["run", "--max-lag", "far", *_TRUE], "--max-lag"),
    "threshold that does not exist": (["run", "--detect", "speed=1", *_TRUE], "outlier_clip"),
    "threshold that is no number": (["run", "--detect", "outlier_clip=wide", *_TRUE], "outlier_clip=wide"),
    "several nodes without a key": (["run", *_SEVERAL_NODES], "crossrank keygen"),
    "several nodes with no such key": (["run", "--key", "nowhere", *_SEVERAL_NODES], "nowhere"),
    "several nodes and an address of another machine": (
        ["run", "--insecure", *_SEVERAL_NODES],
        "cannot listen at",
    ),
    "port that does not exist": (["run", "--insecure", "--port", "65536", *_SEVERAL_NODES], "--port"),
    "port that does not exist, on one node": (["run", "--port", "99999", *_TRUE], "--port"),
    "layout of other ranks": (
        ["run", "--layout", "dp=3", "--", "msrun", "--worker_num=2", "train.py"],
        "3 ranks, but there are 2",
    ),
    "webhook of another kind": (["run", "--webhook", "ftp://x/y", *_TRUE], "https://host/path"),
    "webhook nowhere": (["run", "--webhook", "http://", *_TRUE], "https://host/path"),
    "parts of a name beside a name": (["run", "--run-name", "a", "--name-with", "b=1", *_TRUE], "--run-name"),
    "serving nobody": (["serve", "--run-dir", "r", "--bind", "ipc://x", "--world-size", "0"], "--world-size"),
    "serving everybody without a key": (
        ["serve", "--run-dir", "r", "--bind", "tcp://0.0.0.0:0"],
        "crossrank keygen",
    ),
    "serving with a webhook of another kind": (
        ["serve", "--run-dir", "r", "--bind", "ipc://x", "--webhook", "ftp://x"],
        "https://host/path",
    ),
    "relaying to nowhere": (["relay", "--bind", "ipc://x", "--upstream", "foo"], "ipc://<path>"),
    "overhead of hardly a step": (["overhead", "--steps", "20", *_TRUE], "--steps"),
    "overhead in no turn": (["overhead", "--repeat", "0", *_TRUE], "--repeat"),
    "unknown option": (["run", "--colour", *_TRUE], "--colour (see crossrank run --help)"),
    "unknown option before the command": (["--colour", "run", *_TRUE], "--colour (see crossrank --help)"),
    "overhead of no command": (["overhead"], "crossrank overhead [options] -- msrun"),
    "merging with a webhook": (["merge", ".", "--webhook", "http://x/y"], "--webhook"),
    "merging what is to stop": (["merge", ".", "--stop-on-nonfinite"], "--stop-on-nonfinite"),
    "merging with a layout of another kind": (["merge", ".", "--layout", "two"], "--layout"),
    "abbreviated option": (["run", "--log", "x", *_TRUE], "--log"),
    "unknown command": (["walk"], "walk"),
    "no command at all": ([], "COMMAND"),
    "serving without a folder": (["serve", "--bind", "ipc://x"], "--run-dir"),
    "serving with a wrong wait": (
        ["serve", "--run-dir", "r", "--bind", "ipc://x", "--max-wait", "-1"],
        "--max-wait",
    ),
    "serving with a wrong threshold": (
        ["serve", "--run-dir", "r", "--bind", "ipc://x", "--detect", "x"],
        "--detect",
    ),
    "demo with a command": (["demo", *_TRUE], "nothing after --"),
    "demo in a log folder that is a file": (["demo", "--logdir", "a-file"], "is not a folder"),
    "demo in a log folder that cannot be made": (["demo", "--logdir", "/proc/new/runs"], "cannot write"),
    "TensorBoard on nothing": (["tensorboard", "nowhere"], "nowhere does not exist"),
    "TensorBoard on a file": (["tensorboard", "a-file"], "a-file is a file"),
    "TensorBoard with less than no rank": (["tensorboard", "--per-rank-view", "-1", "."], "--per-rank-view"),
    "TensorBoard on an empty folder": (["tensorboard", "."], "holds no run"),
}


@pytest.mark.parametrize(("arguments", "reason"), _WRONG.values(), ids=_WRONG.keys())
def test_wrong_usage_is_one_line_and_exit_code_2_and_creates_nothing(
    workshop: Workshop, arguments: list[str], reason: str
) -> None:
    (workshop.folder / "a-file").touch()
    before = workshop.tree()
    done = workshop.run(*arguments)
    assert done.returncode == 2, done
    assert reason in done.stderr
    assert done.stderr.startswith("crossrank: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    assert workshop.tree() == before


def test_a_taken_port_is_wrong_usage_and_creates_nothing(workshop: Workshop) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        before = workshop.tree()
        done = workshop.run("run", "--bind", endpoint, "--", "true")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"crossrank: cannot listen on {endpoint}: Address already in use; choose another port\n"
    )
    assert workshop.tree() == before


@pytest.mark.parametrize(
    "command", ["run", "demo", "tensorboard", "merge", "serve", "relay", "keygen", "overhead"]
)
def test_help_of_every_command_names_its_exit_codes(workshop: Workshop, command: str) -> None:
    done = workshop.run(command, "--help")
    assert done.returncode == 0
    assert "exit codes:" in done.stdout


def test_help_loads_neither_numpy_nor_a_framework(workshop: Workshop) -> None:
    command = workshop.script(
        "help.py",
        "import sys\nfrom launch.cli import main\nassert main(['run', '--help']) == 0\n"
        "sys.exit(bool({'numpy', 'tensorboard', 'mindspore', 'zmq'} & set(sys.modules)))\n",
    )
    assert workshop.run("run", "--", *command).returncode == 0
