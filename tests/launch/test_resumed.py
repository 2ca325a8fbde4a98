"""A training of several ranks that failed and was resumed into the same run is one curve of what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from curves import check_merged, scalars
from workshop import SOON_MISSED, msrun

if TYPE_CHECKING:
    from workshop import Workshop

_SCRIPT = Path(__file__).with_name("resumed_script.py")


def _losses(folder: Path) -> np.ndarray:
    """Train again in plain numpy: one epoch on the first data, two on the second; shape (ranks, steps)."""
    epochs = [[np.load(folder / f"rank_{rank}_{seed}.npz") for rank in (0, 1)] for seed in (10, 20, 20)]
    weight, bias = (epochs[0][0][name].astype(np.float64) for name in ("weight", "bias"))
    losses = []
    for ranks in epochs:
        for step in range(4):
            errors = [rank["x"][step] @ weight.T + bias - rank["y"][step] for rank in ranks]
            losses.append([np.mean(error**2) for error in errors])
            slopes = [2 * error / error.size for error in errors]
            gradients = [slope.T @ rank["x"][step] for slope, rank in zip(slopes, ranks, strict=True)]
            weight = weight - 0.1 * np.mean(gradients, axis=0)
            bias = bias - 0.1 * np.mean([slope.sum(axis=0) for slope in slopes], axis=0)
    return np.transpose(losses)


@pytest.mark.real
@pytest.mark.timeout(200)
def test_each_step_holds_what_was_trained_last_and_the_steps_of_the_failed_start_are_gone(
    workshop: Workshop,
) -> None:
    for arguments, exit_code in ((["10", "--fail-at=6"], 1), (["20", "--resume"], 0)):
        command = [*msrun(2), str(_SCRIPT), str(workshop.folder), *arguments]
        done = workshop.run("run", "--run-name", "mine", "--", *command, more=SOON_MISSED)
        assert done.returncode == exit_code, done.stderr[-4000:]
    run_dir = workshop.folder / "runs" / "mine"
    rank_dirs = [run_dir / f"rank_{rank}" for rank in (0, 1)]
    check_merged(run_dir / "merged", rank_dirs, steps=12)
    for folder, losses in zip(rank_dirs, _losses(workshop.folder), strict=True):
        assert scalars(folder)["loss"] == pytest.approx(dict(enumerate(losses, start=1)), rel=1e-3)
