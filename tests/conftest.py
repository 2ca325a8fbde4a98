"""Fails a test that leaves a thread, a child process or a ZeroMQ context behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

# MindSpore needs protobuf's Python implementation and chooses it when it is imported, which is too late where a
# test has imported TensorBoard before.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

# A shell starts what runs in the background with Ctrl-C ignored, and the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_DEADLINE_SECONDS = 10.0


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """MindSpore keeps threads and compilers of its own, so its tests are held to Python's threads only."""
    ours = "training" not in request.node.path.parts
    before = _left(native=ours)
    yield
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while (left := _left(native=ours) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"left behind: {sorted(map(str, left))}"


@pytest.fixture
def socket_folder():
    """A folder with a short path that only its owner can enter."""
    folder = Path(tempfile.mkdtemp(prefix="xr-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def within():
    """Returns a function that waits for a condition, and fails when it does not come true in time."""

    def wait(condition, seconds=30.0, message="the condition did not come true"):
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, message
            time.sleep(0.02)
        return value

    return wait


def _left(*, native):
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("crossrank") or native}
    return threads | (_children() | _zmq_threads() if native else set())


def _children():
    return {
        f"process {pid}"
        for children in _read_all("children")
        for pid in children.split()
        if Path(f"/proc/{pid}").exists()
    }


def _zmq_threads():
    names = [name.strip() for name in _read_all("comm")]
    return {f"context {i}" for i in range(sum(name.startswith("ZMQbg/Reaper") for name in names))}


def _read_all(name):
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        try:
            yield (task / name).read_text()
        except OSError:
            continue
