"""Ranks that mindformers' configuration cuts into stages and slices know their places, and what is theirs to report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from curves import scalars
from workshop import msrun

if TYPE_CHECKING:
    from workshop import Workshop

_SCRIPT = Path(__file__).with_name("sliced_script.py")
_FIRST_STAGE, _LAST_STAGE = (0, 1), (2, 3)
_STEPS, _BATCH = 12, 8


def _logged(log: Path) -> dict[int, float]:
    """Return the losses that mindformers itself has logged, by step."""
    found = re.findall(r"step:\[ *(\d+)/.*loss:\[([\d.]+)/", log.read_text(errors="replace"))
    return {int(step): float(loss) for step, loss in found}


@pytest.mark.real
@pytest.mark.timeout(200)
def test_places_are_mindformers_the_last_stage_alone_has_the_loss_and_samples_are_counted_once(
    workshop: Workshop,
) -> None:
    done = workshop.run("run", "--", *msrun(4), str(_SCRIPT), str(workshop.folder))
    assert done.returncode == 0, done.stderr[-4000:]
    (run_dir,) = (workshop.folder / "runs").iterdir()
    places = json.loads((run_dir / "run.json").read_text())["layout"]
    assert [(places[str(rank)]["pp"], places[str(rank)]["tp"]) for rank in range(4)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert {place["dp"] for place in places.values()} == {0}
    ranks = [scalars(run_dir / f"rank_{rank}") for rank in range(4)]
    losses = _logged(workshop.folder / "log" / "worker_3.log")
    assert sorted(losses) == list(range(1, _STEPS + 1))
    for rank in _FIRST_STAGE:
        assert "loss" not in ranks[rank]
    for rank in _LAST_STAGE:
        assert ranks[rank]["loss"] == pytest.approx(losses, abs=2e-6)
    assert scalars(run_dir / "merged" / "mean")["loss"] == pytest.approx(losses, abs=2e-6)
    for rank in ranks:
        seconds = {step: value / 1e3 for step, value in rank["iteration-time"].items()}
        samples = {step: value * seconds[step] for step, value in rank["throughput"].items()}
        assert samples == pytest.approx(dict.fromkeys(range(2, _STEPS + 1), _BATCH / 4), rel=1e-5)
    assert (run_dir / "findings.jsonl").read_text() == ""
