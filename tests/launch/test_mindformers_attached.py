"""mindformers under `crossrank run` with msrun: recorded without an entry in its configuration."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if TYPE_CHECKING:
    from workshop import Workshop

SCRIPT = Path(__file__).parents[1] / "rankside" / "training" / "llama_training.py"
STEPS = list(range(1, 11))


def _scalars(folder: Path, tag: str) -> dict[int, float]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {event.step: event.value for event in reader.Scalars(tag)}


@pytest.mark.real
@pytest.mark.timeout(200)
def test_both_ranks_of_a_tiny_llama_are_recorded_and_merged_with_no_entry_and_no_tensorboard_section(
    workshop: Workshop,
) -> None:
    done = workshop.run(
        "run",
        "--",
        "msrun",
        "--worker_num=2",
        "--local_worker_num=2",
        f"--master_port={_free_port()}",
        "--log_dir=log",
        "--join=True",
        str(SCRIPT),
        str(workshop.folder / "training"),
        "--no-monitor",
        "--no-tensorboard",
        "--parallel",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (run_dir,) = (workshop.folder / "runs").iterdir()
    for tag in ("loss", "local-grad-norm", "weight_norm"):
        ranks = [_scalars(run_dir / f"rank_{rank}", tag) for rank in (0, 1)]
        assert [sorted(rank) for rank in ranks] == [STEPS, STEPS]
        means = {step: np.mean([rank[step] for rank in ranks]) for step in STEPS}
        assert _scalars(run_dir / "merged" / "mean", tag) == pytest.approx(means, rel=1e-6)
    losses = [_scalars(run_dir / f"rank_{rank}", "loss") for rank in (0, 1)]
    assert losses[0] != losses[1]
    norms = [_scalars(run_dir / f"rank_{rank}", "grad-norm") for rank in (0, 1)]
    assert norms[0] == norms[1]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
