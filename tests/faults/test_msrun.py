"""Faults in real msrun trainings under `crossrank run`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import oracle
import pytest
from workshop import Workshop, wait_until

from aggregator.sinks import run_file

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
_TRAINING = Path(__file__).with_name("msrun_training.py")


@pytest.fixture
def workshop(tmp_path):
    place = Workshop(tmp_path)
    yield place
    print(place.stderr)
    for pid in place.processes():
        os.kill(pid, signal.SIGKILL)


def test_a_killed_and_a_frozen_aggregator_and_a_smaller_world_leave_the_merged_curves_right(workshop):
    """The training goes on from a checkpoint with one rank instead of two, in the same folder."""
    run_dir = workshop.folder / "runs" / "run"
    first = _start(workshop, workers=2, until=80)
    wait_until(lambda: _last_step(run_dir) >= 20, seconds=120)
    os.kill(workshop.aggregators()[0], signal.SIGKILL)
    assert first.wait(150) == 0
    right = oracle.expected(run_dir)
    assert set(right["mean"]["loss"]) == set(range(1, 81))
    oracle.compare(run_dir, right)

    watched = {name: oracle.open_run(run_dir / "merged" / name) for name in right}
    for reader in watched.values():
        reader.Reload()
    second = _start(workshop, workers=1, after=50, until=70)
    wait_until(lambda: _ranks(workshop), seconds=60)
    (aggregator,) = workshop.aggregators()
    os.kill(aggregator, signal.SIGSTOP)
    wait_until(lambda: "is finishing" in workshop.stderr, seconds=150)
    os.kill(aggregator, signal.SIGCONT)
    assert second.wait(60) == 0
    right = oracle.expected(run_dir)
    seen = right[""]["loss/ranks_seen"]
    assert seen == {step: 2 if step <= 50 else 1 for step in range(1, 71)}
    oracle.compare(run_dir, right)
    oracle.compare(run_dir, right, watched)


def test_msrun_fails_as_it_would_without_us_when_a_rank_is_killed_and_no_other_is_accused(workshop):
    run_dir = workshop.folder / "runs" / "run"
    training = _start(workshop, workers=2, until=2000)
    wait_until(lambda: _last_step(run_dir) >= 20, seconds=120)
    ranks = _ranks(workshop)
    # msrun looks once a second, and ends the other ranks then: in the moment before it nobody can tell them apart.
    with _held_back(_parent(ranks[1]), seconds=0.3):
        os.kill(ranks[1], signal.SIGKILL)
    assert training.wait(150) == 1
    assert run_file.read(run_dir / "run.json")["ranks"]["lost"] == [0, 1]
    (finding,) = _silent(run_dir)
    assert finding["ranks"] == [1]
    assert "rank 1: gone without a goodbye" in finding["message"]
    assert "rank 0 ended" in finding["message"]
    oracle.compare(run_dir, oracle.expected(run_dir))


def test_a_killed_rank_is_named_where_msrun_leaves_the_others_waiting(workshop):
    run_dir = workshop.folder / "runs" / "run"
    training = _start(workshop, workers=2, until=2000, join=False)
    wait_until(lambda: _last_step(run_dir) >= 20, seconds=120)
    os.kill(_ranks(workshop)[1], signal.SIGKILL)
    wait_until(lambda: _silent(run_dir))
    training.send_signal(signal.SIGTERM)
    training.wait(60)
    (finding,) = _silent(run_dir)
    assert finding["ranks"] == [1]
    assert "1 rank is alive and will wait for it" in finding["message"]
    oracle.compare(run_dir, oracle.expected(run_dir))


def test_a_rank_that_raises_is_named_with_its_error_and_not_the_one_that_msrun_then_kills(workshop):
    run_dir = workshop.folder / "runs" / "run"
    training = _start(workshop, "--failing-rank=1", workers=2, until=2000)
    assert training.wait(200) == 1
    (finding,) = _silent(run_dir)
    assert finding["ranks"] == [1]
    assert "rank 1: failed: ValueError: a batch that cannot be used" in finding["message"]


def _start(workshop, *options, workers, until, after=0, join=True):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    msrun = [str(Path(sys.executable).with_name("msrun")), f"--join={join}", f"--master_port={port}"]
    counts = [f"--worker_num={workers}", f"--local_worker_num={workers}"]
    training = [str(_TRAINING), f"--after={after}", f"--until={until}", *options]
    return workshop.start("run", "--run-name", "run", "--", *msrun, *counts, *training)


def _last_step(run_dir):
    return run_file.read(run_dir / "run.json").get("last_step", -1)


def _silent(run_dir):
    lines = (run_dir / "findings.jsonl").read_text().splitlines()
    return [finding for finding in map(json.loads, lines) if finding["kind"] == "silent"]


@contextlib.contextmanager
def _held_back(pid, *, seconds):
    os.kill(pid, signal.SIGSTOP)
    yield
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _ranks(workshop):
    """Return the pids of the ranks' processes, by rank."""
    ranks = {}
    for pid, command in workshop.processes().items():
        if f"{_TRAINING}" not in command:
            continue
        environment = dict(
            entry.partition("=")[::2] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")
        )
        if environment.get("MS_ROLE") == "MS_WORKER":
            ranks[int(environment["RANK_ID"])] = pid
    return ranks
