"""mindformers under `crossrank run` with msrun: recorded without an entry in its configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from curves import check_merged, scalars
from workshop import SOON_MISSED, Workshop, msrun

SCRIPT = Path(__file__).parents[1] / "rankside" / "training" / "llama_training.py"
RANKS = (0, 1)
_LOGGED = re.compile(r"Epoch:\[ *(\d+)/ *2\], step:\[ *(\d+)/ *5\], loss:\[([\d.]+)/")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of ten steps that failed after the seventh and was resumed from the fifth."""
    workshop = Workshop(tmp_path_factory.mktemp("llama"))
    for number, (switch, exit_code) in enumerate((("--fail-at=7", 1), ("--resume", 0))):
        training = [
            str(SCRIPT),
            "training",
            "--no-monitor",
            "--no-tensorboard",
            "--parallel",
            "--checkpoints",
        ]
        done = workshop.run("run", "--run-name", "mine", "--", *msrun(2), *training, switch, more=SOON_MISSED)
        assert done.returncode == exit_code, done.stderr[-4000:]
        (workshop.folder / "log").rename(workshop.folder / f"log_{number}")
    assert not workshop.processes()
    return workshop.folder


def _logged(log: Path) -> dict[int, float]:
    """Return the losses that mindformers itself has logged, by step; an epoch has five."""
    found = _LOGGED.findall(log.read_text(errors="replace"))
    return {5 * (int(epoch) - 1) + int(step): float(loss) for epoch, step, loss in found}


@pytest.mark.real
@pytest.mark.timeout(300)
def test_both_ranks_are_recorded_and_merged_with_no_entry_and_no_tensorboard_section(resumed: Path) -> None:
    run_dir = resumed / "runs" / "mine"
    rank_dirs = [run_dir / f"rank_{rank}" for rank in RANKS]
    # mindformers numbers the attention heads through all ranks.
    check_merged(run_dir / "merged", rank_dirs, steps=10, own_tags=("max_attention_logit/layers.0/",))
    first, second = map(scalars, rank_dirs)
    assert first["weight_norm"] == second["weight_norm"]
    assert first["grad-norm"] == second["grad-norm"]
    assert first["loss"] != second["loss"]


@pytest.mark.real
@pytest.mark.timeout(300)
def test_what_a_device_dumps_stands_at_the_step_that_it_is_of_although_it_is_written_later(
    resumed: Path,
) -> None:
    run_dir = resumed / "runs" / "mine"
    counts = {step: step if step < 6 else step - 5 for step in range(1, 9)}  # as each start counts
    for rank in RANKS:
        curves = scalars(run_dir / f"rank_{rank}")
        for number, tag in enumerate(("local_norm/model.layers.0.ffn_norm.weight", "device_local_norm")):
            expected = {step: count + rank / 4 + number / 2 for step, count in counts.items()}
            assert curves[tag] == expected


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_resumed_training_holds_at_each_step_what_mindformers_trained_there_last(resumed: Path) -> None:
    for rank in RANKS:
        failed, then = (_logged(resumed / f"log_{number}" / f"worker_{rank}.log") for number in (0, 1))
        assert sorted(failed) == [1, 2, 3, 4, 5, 6, 7]
        assert sorted(then) == [6, 7, 8, 9, 10]
        losses = scalars(resumed / "runs" / "mine" / f"rank_{rank}")["loss"]
        assert losses == pytest.approx({**failed, **then}, abs=2e-6)
