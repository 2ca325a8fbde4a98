"""Under a real msrun, each rank's own gradient norm and the global one are told apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_training import curve

SCRIPT = Path(__file__).parent / "data_parallel_script.py"


def _run(folder, *arguments):
    environment = {
        **os.environ,
        "CROSSRANK_RUN_DIR": str(folder / "run"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for name in ("CROSSRANK_ENDPOINT", "RANK_ID", "MS_ROLE"):
        environment.pop(name, None)
    command = [
        str(Path(sys.executable).parent / "msrun"),
        "--worker_num=2",
        "--local_worker_num=2",
        "--master_port=" + str(_free_port()),
        f"--log_dir={folder / 'log'}",
        "--join=True",
        str(SCRIPT),
        str(folder),
        *arguments,
    ]
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    result = subprocess.run(
        command, env=environment, timeout=110, capture_output=True, text=True, cwd=folder, check=False
    )
    logs = "".join(path.read_text(errors="replace")[-3000:] for path in (folder / "log").glob("worker_*.log"))
    assert result.returncode == 0, result.stderr + logs


def _free_port():
    import socket  # noqa: PLC0415

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _expected(folder, *, mean):
    """Both ranks' training in plain numpy: (losses, local norms, global norms), each step by rank."""
    ranks = [np.load(folder / f"{rank}.npz") for rank in (0, 1)]
    weight, bias = (ranks[0][name].astype(np.float64) for name in ("weight", "bias"))
    losses, local, total = [], [], []
    for step in range(12):
        gradients = []
        for rank in ranks:
            x, y = (rank[name][step].astype(np.float64) for name in ("x", "y"))
            error = x @ weight.T + bias - y
            gradients.append((2 / error.size * error.T @ x, 2 / error.size * error.sum(axis=0)))
            losses.append(np.mean(error**2))
            local.append(np.sqrt(sum(np.sum(g**2) for g in gradients[-1])))
        reduced = [sum(parts) / (2 if mean else 1) for parts in zip(*gradients, strict=True)]
        total.append(np.sqrt(sum(np.sum(g**2) for g in reduced)))
        weight, bias = weight - 0.01 * reduced[0], bias - 0.01 * reduced[1]
    return losses, local, total


@pytest.mark.real
@pytest.mark.parametrize(("mode", "reduction"), [("graph", "sum"), ("pynative", "mean")])
def test_each_rank_records_its_own_norm_and_the_common_one(tmp_path, mode, reduction):
    _run(tmp_path, mode, reduction)
    losses, local, total = _expected(tmp_path, mean=reduction == "mean")
    for rank in (0, 1):
        for tag, values in (
            ("loss", losses[rank::2]),
            ("local-grad-norm", local[rank::2]),
            ("grad-norm", total),
        ):
            recorded = curve(tmp_path / "run", tag, rank=rank)
            assert recorded == pytest.approx(dict(enumerate(values, start=1)), rel=1e-3), (tag, rank)
    for tag in ("grad-norm", "param-fingerprint", "learning-rate"):
        assert curve(tmp_path / "run", tag, rank=0) == curve(tmp_path / "run", tag, rank=1)


@pytest.mark.real
def test_ranks_that_were_initialised_differently_have_different_fingerprints_and_equal_norms(tmp_path):
    _run(tmp_path, "graph", "mean", "--unseeded")
    first, second = (curve(tmp_path / "run", "param-fingerprint", rank=rank) for rank in (0, 1))
    assert sorted(first) == sorted(second) == [1]
    assert first != second
    norms = [curve(tmp_path / "run", "grad-norm", rank=rank) for rank in (0, 1)]
    assert norms[0] == norms[1]
