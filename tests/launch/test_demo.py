"""The demo on a real msrun: every step on every rank and merged, the damaged rank named, the healthy run silent."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from curves import STATISTICS, check_merged, scalars
from workshop import Workshop, wait_until

import launch.demo

if TYPE_CHECKING:
    import subprocess

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

_RANKS = 4
_STEPS = 200


def _run_dir(workshop: Workshop) -> Path:
    (run_dir,) = [path for path in (workshop.folder / "runs").iterdir() if (path / "merged").is_dir()]
    return run_dir


def _findings(run_dir: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run_dir / "findings.jsonl").read_text().splitlines()]


def _check_merged(run_dir: Path) -> None:
    """Compare every merged point with numpy over the four rank files."""
    rank_dirs = [run_dir / f"rank_{rank}" for rank in range(_RANKS)]
    check_merged(run_dir / "merged", rank_dirs, steps=_STEPS)
    assert "learning-rate" in scalars(rank_dirs[0])


class _DamagedDemo(NamedTuple):
    """What one `crossrank demo --tensorboard` left and showed. runs: the names that TensorBoard listed."""

    run_dir: Path
    printed: str
    exit_code: int
    runs: set[str]


@pytest.fixture(scope="module")
def damaged_demo(tmp_path_factory: pytest.TempPathFactory) -> _DamagedDemo:
    workshop = Workshop(tmp_path_factory.mktemp("demo"))
    with (workshop.folder / "stdout").open("w") as stdout:
        process = workshop.start("demo", "--tensorboard", stdout=stdout)
    wait_until(lambda: "Press CTRL+C" in workshop.stderr, seconds=150)
    address = re.search(r"http://\S+", workshop.stderr)
    assert address is not None
    wanted = {*(f"rank_{rank}" for rank in range(_RANKS)), *(f"merged/{name}" for name in STATISTICS)}

    def shown() -> set[str]:
        # The address is TensorBoard's own.
        with urllib.request.urlopen(f"{address[0]}data/runs", timeout=10) as answer:  # noqa: S310
            return set(json.load(answer))

    wait_until(lambda: wanted <= shown())
    runs = shown()
    process.send_signal(signal.SIGINT)
    exit_code = process.wait(30)
    assert not workshop.processes()
    return _DamagedDemo(_run_dir(workshop), (workshop.folder / "stdout").read_text(), exit_code, runs)


def test_every_step_of_the_demo_is_on_every_rank_and_merged_as_numpy_does(damaged_demo: _DamagedDemo) -> None:
    _check_merged(damaged_demo.run_dir)


def test_the_findings_of_the_demo_name_the_damaged_rank_its_loss_and_the_step(
    damaged_demo: _DamagedDemo,
) -> None:
    findings = _findings(damaged_demo.run_dir)
    assert findings
    assert all(finding["ranks"] == [2] for finding in findings), findings
    on_loss = [finding for finding in findings if finding["tag"] == "loss"]
    assert on_loss
    assert 120 <= int(str(on_loss[0]["first_step"])) <= 130


def test_the_demo_ends_with_the_place_the_command_and_the_findings(damaged_demo: _DamagedDemo) -> None:
    closing = damaged_demo.printed.split("curves:")[-1]
    assert str(damaged_demo.run_dir) in closing
    assert f"crossrank tensorboard {damaged_demo.run_dir}" in closing
    assert re.search(r"rank 2: loss .* step 12\d", closing)


def test_the_demo_opens_tensorboard_on_its_run_until_ctrl_c(damaged_demo: _DamagedDemo) -> None:
    assert damaged_demo.exit_code == 0
    assert "merged" in damaged_demo.runs


def test_the_healthy_demo_prints_no_finding(workshop: Workshop) -> None:
    done = workshop.run("demo", "--healthy")
    assert done.returncode == 0, done.stderr
    run_dir = _run_dir(workshop)
    assert _findings(run_dir) == []
    assert "no finding: no rank stood out" in done.stdout
    _check_merged(run_dir)


def _start_training(workshop: Workshop, *msrun_options: str, steps: int = 200) -> subprocess.Popen[str]:
    script = Path(launch.demo.__file__).with_name("train.py")
    msrun = [
        "msrun",
        f"--worker_num={_RANKS}",
        f"--local_worker_num={_RANKS}",
        "--log_dir=logs",
        *msrun_options,
    ]
    return workshop.start("run", "--run-name", "mine", "--", *msrun, str(script), f"--steps={steps}")


def _free_port_option() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"--master_port={probe.getsockname()[1]}"


def _steps_written(rank_dir: Path) -> int:
    return len(scalars(rank_dir).get("loss", {})) if rank_dir.is_dir() else 0


def test_training_does_not_notice_that_the_aggregator_is_killed(workshop: Workshop) -> None:
    process = _start_training(workshop, "--join=True", _free_port_option(), steps=400)
    run_dir = workshop.folder / "runs" / "mine"
    wait_until(lambda: _steps_written(run_dir / "rank_0") > 20, seconds=120)
    (aggregator,) = workshop.aggregators()
    os.kill(aggregator, signal.SIGKILL)
    assert process.wait(200) == 0, workshop.stderr
    assert "the aggregator was killed by SIGKILL" in workshop.stderr
    for rank in range(_RANKS):
        assert list(scalars(run_dir / f"rank_{rank}")["loss"]) == list(range(1, 401))


def test_workers_that_msrun_leaves_behind_are_waited_for(workshop: Workshop) -> None:
    """msrun without --join=True returns at once, with exit code 0."""
    process = _start_training(workshop, _free_port_option())
    assert process.wait(200) == 0, workshop.stderr
    assert "msrun has ended; waiting for the processes it left" in workshop.stderr
    run_dir = workshop.folder / "runs" / "mine"
    assert list(scalars(run_dir / "merged" / "mean")["loss"]) == list(range(1, _STEPS + 1))
    entries = json.loads((run_dir / "run.json").read_text())
    assert entries["ranks"] == {"live": [], "left": list(range(_RANKS)), "lost": []}
    assert entries["world_size"] == _RANKS
    assert entries["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_sigterm_ends_msrun_its_workers_and_the_aggregator(workshop: Workshop) -> None:
    process = _start_training(workshop, "--join=True", _free_port_option(), steps=5000)
    wait_until(lambda: _steps_written(workshop.folder / "runs" / "mine" / "rank_0") > 20, seconds=120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == 128 + signal.SIGTERM
    assert not workshop.processes()
