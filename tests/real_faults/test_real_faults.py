"""Bugs of users in a real data-parallel training under msrun: each is named, with its rank and step, and no other rank.

A start of msrun costs half a minute, so that some runs hold several bugs. That is fair where they show in numbers
that have nothing to do with each other, or when the first is found before the next begins; and each run must
name all its ranks and no other, so that a bug that helped or hid another one would be noticed.
"""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from workshop import Workshop, wait_until

if TYPE_CHECKING:
    import subprocess

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

RANKS = 4
STEPS = 200
_SECONDS_TO_TRAIN = 250.0


class Run:
    """A training under `crossrank run`, and what was found in it so far."""

    def __init__(self, folder: Path, *bugs: str, join: bool = True, detect: tuple[str, ...] = ()) -> None:
        """join: whether msrun watches over its workers, or leaves them alone."""
        self.workshop = Workshop(folder)
        self.folder = folder / "runs" / "mine"
        self.printed = ""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._stdout = folder / "stdout"
        with self._stdout.open("w") as stdout:
            self.process: subprocess.Popen[str] = self.workshop.start(
                *("run", "--run-name", "mine"),
                *(f"--detect={each}" for each in detect),
                *("--", "msrun", f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", f"--join={join}"),
                *("--log_dir=logs", f"--master_port={port}"),
                *(str(Path(__file__).with_name("train.py")), f"--steps={STEPS}", *bugs),
                stdout=stdout,
            )

    def end(self) -> None:
        """Wait for the end of the training."""
        self.process.wait(_SECONDS_TO_TRAIN)
        self.printed = self._stdout.read_text()
        assert not self.workshop.processes()

    @property
    def lines(self) -> list[dict[str, object]]:
        path = self.folder / "findings.jsonl"
        whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole]

    def opened(self, kind: str) -> list[dict[str, object]]:
        if not (self.folder / "findings.jsonl").exists():
            return []
        return [line for line in self.lines if line["kind"] == kind and line["status"] == "open"]


def _named(run: Run) -> set[tuple[str, tuple[int, ...]]]:
    """Return kind and ranks of every finding."""
    return {(str(line["kind"]), tuple(line["ranks"])) for line in run.lines}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("healthy"))
    run.end()
    return run


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The parameters of rank 2 are damaged from step 120 on."""
    run = Run(tmp_path_factory.mktemp("perturbed"), "--bug=shrink:2:120")
    run.end()
    return run


@pytest.fixture(scope="module")
def misconfigured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """No seed; rank 1 uses another learning rate from step 60 on; rank 3 sleeps before every step.

    Which parameters, which learning rate and how much time are three things that are compared apart.
    """
    run = Run(tmp_path_factory.mktemp("misconfigured"), "--unseeded", "--bug=rate:1:60", "--bug=sleep:3:1")
    run.end()
    return run


class Breakdown(NamedTuple):
    """A run whose ranks break down one after the other.

    stacks: what rank 1 wrote of its threads while it stalled.
    """

    run: Run
    stacks: str


@pytest.fixture(scope="module")
def breakdown(tmp_path_factory: pytest.TempPathFactory) -> Breakdown:
    """Wrong labels on rank 3 from step 100 on, NaN on rank 0 at 160, a stop of rank 1 at 180, rank 2 killed at 190.

    Each is found before the next begins, and the last two show in no number that the first two touch. msrun
    leaves its workers alone: with --join it ends all of them within a second after one has died.
    """
    folder = tmp_path_factory.mktemp("breakdown")
    go_on = folder / "go-on"
    bugs = ("shuffle:3:100", "nan:0:160", "block:1:180", "kill:2:190")
    run = Run(
        folder,
        *(f"--bug={bug}" for bug in bugs),
        f"--go-on={go_on}",
        join=False,
        detect=("stalled_seconds=8",),
    )
    wait_until(lambda: run.opened("stalled"), seconds=200)
    rank_1 = run.folder / "rank_1"
    wait_until(lambda: any("train.py" in path.read_text() for path in rank_1.glob("stacks-*.txt")))
    stacks = "".join(path.read_text() for path in rank_1.glob("stacks-*.txt"))
    go_on.touch()
    wait_until(lambda: run.opened("silent"), seconds=100)
    run.process.send_signal(signal.SIGTERM)  # the other ranks are left waiting
    run.end()
    return Breakdown(run, stacks)


def test_healthy_training_is_silent(healthy: Run) -> None:
    assert healthy.process.returncode == 0, healthy.workshop.stderr
    assert healthy.lines == []
    assert "no finding: no rank stood out" in healthy.printed


def test_a_rank_with_damaged_parameters_is_named_by_its_loss_and_by_its_parameters(perturbed: Run) -> None:
    assert perturbed.process.returncode == 0, perturbed.workshop.stderr
    outlier = perturbed.opened("outlier")[0]
    assert (outlier["tag"], outlier["ranks"]) == ("loss", [2])
    assert 120 <= int(str(outlier["first_step"])) <= 130
    assert int(str(outlier["step"])) <= 150
    (mismatch,) = perturbed.opened("mismatch")
    assert (mismatch["tag"], mismatch["ranks"]) == ("param-fingerprint", [2])
    assert "the comparison at step 100 found no difference" in str(mismatch["message"])


def test_what_the_damage_does_to_all_ranks_through_the_reduced_gradient_is_not_everybodys_fault(
    perturbed: Run,
) -> None:
    assert _named(perturbed) == {("outlier", (2,)), ("mismatch", (2,))}


def test_an_unseeded_initialisation_is_named_as_such_with_its_remedy_at_the_first_step(
    misconfigured: Run,
) -> None:
    first = misconfigured.lines[0]
    assert (first["kind"], first["tag"], first["ranks"]) == ("mismatch", "param-fingerprint", [])
    assert first["first_step"] == first["step"] == 1
    assert "initialisation is not seeded; set the same seed on all ranks" in str(first["message"])


def test_a_rank_with_another_learning_rate_is_named_in_the_very_step(misconfigured: Run) -> None:
    (finding,) = [each for each in misconfigured.opened("mismatch") if each["ranks"]]
    assert (finding["tag"], finding["ranks"]) == ("learning-rate", [1])
    assert finding["first_step"] == finding["step"] == 60
    assert "rank 1: learning-rate is 0.15 and 0.05 on the other 3 replicas" in str(finding["message"])


def test_a_rank_that_sleeps_before_each_step_is_slow_within_two_hundred_steps(misconfigured: Run) -> None:
    (finding,) = misconfigured.opened("slow")
    assert (finding["tag"], finding["ranks"], finding["persistence"]) == ("host-time", [3], "chronic")
    assert int(str(finding["first_step"])) <= 40
    evidence = finding["evidence"]
    assert isinstance(evidence, dict)
    assert evidence["excess_ms"] > 4.0
    assert "look at its callbacks and its host" in str(finding["message"])


def test_a_misconfigured_training_accuses_no_other_rank(misconfigured: Run) -> None:
    assert misconfigured.process.returncode == 0, misconfigured.workshop.stderr
    # Three times the learning rate on a third of the ranks' own parameters may show in its loss or its gradients.
    assert _named(misconfigured) - {("outlier", (1,))} == {
        ("mismatch", ()),
        ("mismatch", (1,)),
        ("slow", (3,)),
    }


def test_a_rank_with_wrong_labels_is_an_outlier_on_its_loss(breakdown: Breakdown) -> None:
    outlier = breakdown.run.opened("outlier")[0]
    assert (outlier["tag"], outlier["ranks"]) == ("loss", [3])
    assert 100 <= int(str(outlier["first_step"])) <= 105
    assert int(str(outlier["step"])) <= 130


def test_the_rank_that_was_fed_a_nan_is_named_although_all_ranks_have_it_a_step_later(
    breakdown: Breakdown,
) -> None:
    (finding,) = breakdown.run.opened("nonfinite")
    assert (finding["tag"], finding["ranks"]) == ("loss", [0])
    assert finding["first_step"] == finding["step"] == 160


def test_a_rank_that_stops_in_its_data_loader_is_stalled_while_fetching_data_with_its_stacks_at_hand(
    breakdown: Breakdown,
) -> None:
    (finding,) = breakdown.run.opened("stalled")
    assert (finding["ranks"], finding["first_step"]) == ([1], 180)
    assert "rank 1 has been fetching data for" in str(finding["message"])
    assert "rank_1/stacks-" in str(finding["message"])
    assert "in __getitem__" in breakdown.stacks


def test_a_killed_rank_is_named_while_the_others_wait_for_it(breakdown: Breakdown) -> None:
    (finding,) = breakdown.run.opened("silent")
    assert finding["ranks"] == [2]
    # What it did in the few milliseconds since it went on at 180 it may not have told.
    assert 180 <= int(str(finding["first_step"])) <= 190
    assert "rank 2: gone without a goodbye" in str(finding["message"])
    assert "3 ranks are alive and will wait for it" in str(finding["message"])


def test_a_training_that_breaks_down_accuses_no_other_rank(breakdown: Breakdown) -> None:
    assert _named(breakdown.run) == {
        ("outlier", (3,)),
        ("nonfinite", (0,)),
        ("stalled", (1,)),
        ("silent", (2,)),
    }
