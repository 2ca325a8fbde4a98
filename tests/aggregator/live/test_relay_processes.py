"""Relays on real sockets: processes are killed, keys are wrong, and the merged files hold what every rank wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest
from processes import Processes
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankside import keys

pytestmark = pytest.mark.real
RANKS, STEPS = 6, 300


@pytest.fixture
def processes(tmp_path):
    folder = tmp_path / "processes"
    folder.mkdir()
    here = Processes(folder)
    yield here
    here.close()


def curve(folder):
    accumulator = EventAccumulator(str(folder), {"scalars": 0})
    accumulator.Reload()
    points = accumulator.Scalars("loss")
    return [point.step for point in points], np.array([point.value for point in points])


def assert_merged_is_numpy_over_the_rank_files(run_dir, ranks=RANKS, steps=STEPS):
    rows = []
    for rank in range(ranks):
        found, values = curve(run_dir / f"rank_{rank}")
        assert found == list(range(1, steps + 1))
        rows.append(values)
    for name, over in {"mean": np.nanmean, "min": np.nanmin, "max": np.nanmax, "std": np.nanstd}.items():
        found, values = curve(run_dir / "merged" / name)
        assert found == list(range(1, steps + 1)), name
        assert np.allclose(values, over(np.array(rows), axis=0), rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("root_dies", [False, True], ids=["relay dies", "relay and root die"])
def test_merged_curves_are_numpys_over_all_rank_files_whoever_is_killed(
    processes, tmp_path, socket_folder, within, root_dies
):
    run_dir, key = tmp_path / "run", tmp_path / "key"
    keys.generate(key)

    def root(bind):
        return processes.listen(
            "serve", "--run-dir", run_dir, "--bind", bind, "--world-size", RANKS, "--key", key
        )

    def relay(bind, ipc, upstream):
        return processes.listen(
            "relay", "--bind", bind, "--bind", f"ipc://{socket_folder}/{ipc}", "--upstream", upstream, "--key", key
        )  # fmt: skip

    first = root("tcp://127.0.0.1:*")
    here = first.said[0]
    outer = relay("tcp://127.0.0.1:*", "outer", here)
    there, run_name = outer.said
    assert run_name == "run"
    inner = relay("tcp://127.0.0.1:*", "inner", there)
    places = [here, here, *2 * [f"ipc://{socket_folder}/outer"], *2 * [f"ipc://{socket_folder}/inner"]]
    ranks = [
        processes.rank(rank, RANKS, steps=STEPS, run_dir=run_dir, endpoint=place, key=key)
        for rank, place in enumerate(places)
    ]
    within(lambda: all(processes.has_reached(rank, 100) for rank in range(RANKS)))
    outer.kill()
    outer.wait()
    outer = relay(there, "outer", here)
    within(lambda: all(processes.has_reached(rank, 200) for rank in range(RANKS)))
    if root_dies:
        first.kill()
        first.wait()
        first = root(here)
    assert [rank.wait(30) for rank in ranks] == [0] * RANKS, [processes.log(rank) for rank in ranks]
    processes.cut_lifeline()
    assert [each.wait(30) for each in (first, outer, inner)] == [0, 0, 0]
    assert_merged_is_numpy_over_the_rank_files(run_dir)
    end = json.loads((run_dir / "run.json").read_text())
    assert end["merged_from"] == ("files" if root_dies else "live"), end.get("because")
    assert end["counts"]["lost"] == 0


@pytest.mark.parametrize("wrong", ["missing", "another"])
def test_who_has_not_the_key_is_turned_away_with_a_line_on_both_sides_and_the_others_are_served(
    processes, tmp_path, within, wrong
):
    run_dir, key, other = tmp_path / "run", tmp_path / "key", tmp_path / "other"
    keys.generate(key)
    keys.generate(other)
    root = processes.listen(
        "serve", "--run-dir", run_dir, "--bind", "tcp://127.0.0.1:*", "--world-size", 2, "--key", key
    )
    endpoint = root.said[0]
    # It does not belong to the run: it writes to a folder of its own.
    stranger = processes.rank(
        1, 2, steps=STEPS, run_dir=tmp_path / "elsewhere" / "run", endpoint=endpoint,
        key=other if wrong == "another" else "",
    )  # fmt: skip
    within(lambda: "its key is missing or wrong" in processes.log(root))
    within(lambda: "the key is missing on one side, or it is another one" in processes.log(stranger))
    ranks = [
        processes.rank(rank, 2, steps=50, run_dir=run_dir, endpoint=endpoint, key=key) for rank in (0, 1)
    ]
    assert [rank.wait(30) for rank in ranks] == [0, 0]
    assert stranger.wait(30) == 0
    processes.cut_lifeline()
    assert root.wait(30) == 0
    assert_merged_is_numpy_over_the_rank_files(run_dir, ranks=2, steps=50)
    assert json.loads((run_dir / "run.json").read_text())["merged_from"] == "live"


def test_no_secret_stands_in_a_log_or_in_a_run_folder(processes, tmp_path):
    run_dir, key = tmp_path / "run", tmp_path / "key"
    keys.generate(key)
    root = processes.listen("serve", "--run-dir", run_dir, "--bind", "tcp://127.0.0.1:*", "--key", key)
    rank = processes.rank(0, 1, steps=10, run_dir=run_dir, endpoint=root.said[0], key=key)
    assert rank.wait(30) == 0
    processes.cut_lifeline()
    assert root.wait(30) == 0
    written = [path.read_bytes() for path in [*run_dir.rglob("*"), root.log, rank.log] if path.is_file()]
    assert not any(secret in content for content in written for secret in keys.load(key))
