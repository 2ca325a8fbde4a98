"""`crossrank overhead` measures an unchanged command in turns, and says what monitoring adds to a step."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import launch.demo
from launch.overhead import Quartiles, Turn, report

if TYPE_CHECKING:
    from workshop import Workshop


@pytest.mark.real
def test_one_pair_of_turns_is_measured_stopped_in_time_and_compared(workshop: Workshop) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    msrun = ["msrun", "--worker_num=2", "--local_worker_num=2", "--join=True", f"--master_port={port}"]
    script = Path(launch.demo.__file__).with_name("train.py")
    done = workshop.run(
        "overhead", "--steps=40", "--repeat=1", "--", *msrun, "--log_dir=logs", str(script), "--steps=500"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    number = r"[0-9.]+"
    # 39 intervals of each of two ranks, without the first ten.
    turn = rf"median {number} ms, quartiles {number} to {number} ms, 58 steps of all ranks"
    assert re.search(rf"turn 1 of 2, without: {turn}", done.stdout), done.stdout
    assert re.search(rf"turn 2 of 2, with monitoring: {turn}", done.stdout), done.stdout
    assert "the first 10 steps of each turn, which compile, are left out" in done.stdout
    assert re.search(
        r"monitoring adds [+-][0-9.]+ ms a step \([+-][0-9.]+ %\) in one pair of turns", done.stdout
    )
    assert not (workshop.folder / "runs").exists()


def test_the_exit_code_of_a_failed_turn_is_named(workshop: Workshop) -> None:
    done = workshop.run("overhead", "--", "sh", "-c", "exit 5")
    assert done.returncode == 3
    assert "turn 1 of 4, without: the command ended with exit code 5" in done.stderr


def test_a_command_without_a_training_is_said_to_have_none(workshop: Workshop) -> None:
    done = workshop.run("overhead", "--", "true")
    assert done.returncode == 3
    assert "steps of Model.train or Model.fit were timed" in done.stderr


@pytest.mark.parametrize(
    ("medians", "difference", "too_noisy"),
    [
        ((10.0, 11.0, 12.0, 10.0), "+1.500 ms a step (+15.00 %): median of 2 pairs of turns", False),
        ((10.0, 11.0, 10.0, 11.0), "+0.000 ms a step (+0.45 %): median of 2 pairs of turns", True),
    ],
)
def test_the_difference_is_that_of_each_pair_and_noise_beyond_it_is_told(
    medians: tuple[float, ...], difference: str, too_noisy: bool
) -> None:
    """Turns go without, with, with, without."""
    monitored = (False, True, True, False)
    turns = [Turn("turn", m, Quartiles(t, t, t), 58) for m, t in zip(monitored, medians, strict=True)]
    said = list(report(turns))
    assert any(f"monitoring adds {difference}" in line for line in said), said
    assert any("turns differ by more" in line for line in said) == too_noisy
