"""Each training test writes into a run folder of its own, in graph mode, in PyNative mode, or in both."""

from __future__ import annotations

import mindspore
import pytest

MODES = {"graph": mindspore.GRAPH_MODE, "pynative": mindspore.PYNATIVE_MODE}


@pytest.fixture(params=sorted(MODES))
def mode(request):
    """Both ways in which MindSpore executes."""
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=MODES[request.param], device_target="CPU")
    yield request.param
    mindspore.set_context(mode=before)


@pytest.fixture
def graph_mode():
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
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
