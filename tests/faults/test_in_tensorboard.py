"""A TensorBoard that is open during a run with restarts shows the right curves in the end, by either way of loading."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from typing import NamedTuple

import fleet
import oracle
import pytest
from plan import LAST_STEP, WORLD_SIZE, FaultPlan
from tensorboard.backend.event_processing import tag_types

from launch.cli import main

pytestmark = pytest.mark.real


class Point(NamedTuple):
    step: int
    value: float


class Served:
    """One run as a TensorBoard serves it, with the methods of TensorBoard's own reader."""

    def __init__(self, address, run):
        self._address = address
        self._run = run

    def Reload(self):  # noqa: N802 (its name in TensorBoard)
        """Do nothing: the server reloads by itself."""

    def Tags(self):  # noqa: N802 (its name in TensorBoard)
        return {tag_types.SCALARS: list(get(self._address, "scalars/tags").get(self._run, ()))}

    def Scalars(self, tag):  # noqa: N802 (its name in TensorBoard)
        points = get(self._address, "scalars/scalars", run=self._run, tag=tag)
        return [Point(step, float(value)) for _, step, value in points]


def get(address, what, **query):
    url = f"{address}data/plugin/{what}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 (the address is TensorBoard's own)
        return json.load(answer)


@contextlib.contextmanager
def tensorboard(folder, log, load_fast):
    """Serve the folder; gives the address."""
    options = [f"--load_fast={load_fast}", "--port=0", "--reload_interval=1", f"--logdir={folder}"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *options], stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 60
        while not (address := re.search(r"http://\S+/(?= )", log.read_text())):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield address[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def in_time(check, seconds=30.0):
    """Check again until it holds, as a server reloads in its own time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


@pytest.mark.parametrize("load_fast", ["true", "false"])
def test_void_points_are_gone_and_every_step_is_shown_once(load_fast, tmp_path, socket_folder):
    plan = FaultPlan().restart_all(rank=3, step=120, checkpoint=70).await_merged(step=LAST_STEP)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with tensorboard(run_dir, tmp_path / "tensorboard", load_fast) as address:
        with fleet.run(plan, tmp_path, sockets=socket_folder) as outcome:
            assert set(outcome.exit_codes) == {0}
        right = oracle.expected(run_dir)
        served = {name: Served(address, f"merged/{name}".rstrip("/")) for name in right}

        def check():
            oracle.compare(run_dir, right, served)
            for rank in range(WORLD_SIZE):
                reader = oracle.open_run(run_dir / f"rank_{rank}")
                reader.Reload()
                shown = oracle.scalars(Served(address, f"rank_{rank}"))
                assert [step for step, _ in shown["loss"]] == list(range(1, LAST_STEP + 1))
                assert shown["loss"] == oracle.scalars(reader)["loss"]

        in_time(check)
        assert main(["merge", str(run_dir)]) == 0
        in_time(check)
        (chart,) = [
            chart
            for category in get(address, "custom_scalars/layout")["category"]
            for chart in category["chart"]
            if chart["title"] == "loss"
        ]
        assert chart["margin"]["series"] == [{"value": "loss/mean", "lower": "loss/min", "upper": "loss/max"}]
        assert "findings/nonfinite" in get(address, "text/tags")["merged"]
        (card, *_) = get(address, "text/text", run="merged", tag="findings/nonfinite")
        assert "rank 1" in card["text"]
