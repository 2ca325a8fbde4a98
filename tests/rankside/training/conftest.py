"""Each training test writes into a run folder of its own, in graph mode, in PyNative mode, or in both."""

from __future__ import annotations

import contextlib

import mindspore
import pytest

MODES = {"graph": mindspore.GRAPH_MODE, "pynative": mindspore.PYNATIVE_MODE}


@pytest.fixture(params=sorted(MODES))
def mode(request):
    """Both ways in which MindSpore executes."""
    with _executing(request.param):
        yield request.param


@pytest.fixture
def graph_mode():
    with _executing("graph"):
        yield


@pytest.fixture
def pynative_mode():
    with _executing("pynative"):
        yield


@contextlib.contextmanager
def _executing(mode):
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=MODES[mode], device_target="CPU")
    yield
    mindspore.set_context(mode=before)


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """The run's folder, as the launcher would name it; without an endpoint, ranks write files only."""
    folder = tmp_path / "run"
    monkeypatch.setenv("CROSSRANK_RUN_DIR", str(folder))
    for name in ("CROSSRANK_ENDPOINT", "RANK_ID", "RANK_SIZE", "MS_ROLE", "MS_WORKER_NUM", "MS_NODE_ID"):
        monkeypatch.delenv(name, raising=False)
    return folder
