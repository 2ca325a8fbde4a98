"""Faults in real msrun trainings under `crossrank run`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
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


def test_msrun_fails_as_it_would_without_us_when_a_rank_is_killed_and_no_other_is_accused_alone(workshop):
    run_dir = workshop.folder / "runs" / "run"
    training = _start(workshop, workers=2, until=2000)
    wait_until(lambda: _last_step(run_dir) >= 20, seconds=120)
    os.kill(_ranks(workshop)[1], signal.SIGKILL)
    assert training.wait(150) == 1
    assert 1 in run_file.read(run_dir / "run.json")["ranks"]["lost"]
    findings = map(json.loads, (run_dir / "findings.jsonl").read_text().splitlines())
    # msrun looks once a second and then ends the other ranks: within that second nobody can tell who died first.
    silent = [finding["ranks"] for finding in findings if finding["kind"] == "silent"]
    assert silent
    assert all(1 in ranks or not ranks for ranks in silent)
    oracle.compare(run_dir, oracle.expected(run_dir))


def _start(workshop, *, workers, until, after=0):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    msrun = [str(Path(sys.executable).with_name("msrun")), "--join=True", f"--master_port={port}"]
    counts = [f"--worker_num={workers}", f"--local_worker_num={workers}"]
    training = [str(_TRAINING), f"--after={after}", f"--until={until}"]
    return workshop.start("run", "--run-name", "run", "--", *msrun, *counts, *training)


def _last_step(run_dir):
    return run_file.read(run_dir / "run.json").get("last_step", -1)


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
