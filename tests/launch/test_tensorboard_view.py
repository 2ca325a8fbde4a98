"""TensorBoard itself shows what `crossrank tensorboard` says it shows."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from typing import TYPE_CHECKING

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from workshop import wait_until

from launch.errors import UsageError
from launch.tensorboard import find_runs, link_view, open_tensorboard

if TYPE_CHECKING:
    from pathlib import Path

    from workshop import Workshop


def _write_run(run_dir: Path, *, ranks: int, suspects: list[int]) -> None:
    for name in [*(f"rank_{rank}" for rank in range(ranks)), "merged/mean", "merged"]:
        writer = EventFileWriter(str(run_dir / name))
        writer.add_event(Event(step=1, summary=Summary(value=[Summary.Value(tag="loss", simple_value=1.0)])))
        writer.close()
    _append_finding(run_dir, suspects)


def _append_finding(run_dir: Path, ranks: list[int]) -> None:
    with (run_dir / "findings.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "outlier", "ranks": ranks, "tag": "loss", "message": "moved"}) + "\n")


def _shown(view: Path) -> set[str]:
    return {path.name for path in view.iterdir()}


def test_a_run_of_many_ranks_is_linked_as_merged_and_the_ranks_that_a_finding_names(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    _write_run(run_dir, ranks=5, suspects=[1, 3])
    link_view(run_dir, tmp_path / "view", per_rank_view=4)
    assert _shown(tmp_path / "view") == {"rank_1", "rank_3", "merged"}


def test_a_rank_that_comes_under_suspicion_later_is_added(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    _write_run(run_dir, ranks=5, suspects=[1])
    link_view(run_dir, tmp_path / "view", per_rank_view=4)
    _append_finding(run_dir, [4])
    link_view(run_dir, tmp_path / "view", per_rank_view=4)
    assert _shown(tmp_path / "view") == {"rank_1", "rank_4", "merged"}


def test_a_run_of_few_ranks_is_linked_whole(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    _write_run(run_dir, ranks=4, suspects=[])
    link_view(run_dir, tmp_path / "view", per_rank_view=4)
    assert _shown(tmp_path / "view") == {"rank_0", "rank_1", "rank_2", "rank_3", "merged"}


def test_runs_are_found_in_a_run_and_in_a_folder_of_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _write_run(tmp_path / name, ranks=1, suspects=[])
    (tmp_path / "logs").mkdir()
    assert list(find_runs(tmp_path)) == [tmp_path / "a", tmp_path / "b"]
    assert list(find_runs(tmp_path / "a")) == [tmp_path / "a"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        open_tensorboard(tmp_path, per_rank_view=64, arguments=())


@pytest.mark.parametrize(
    ("data_server", "how_to_end"),
    [("--load_fast=true", signal.SIGINT), ("--load_fast=false", signal.SIGTERM)],
)
@pytest.mark.parametrize(
    ("limit", "runs"),
    [
        ("4", {"run/rank_2", "run/merged", "run/merged/mean"}),
        ("64", {*(f"rank_{rank}" for rank in range(5)), "merged", "merged/mean"}),
    ],
)
def test_tensorboard_shows_merged_and_suspects_of_a_large_run_and_all_of_a_small_one(
    workshop: Workshop, data_server: str, how_to_end: int, limit: str, runs: set[str]
) -> None:
    _write_run(workshop.folder / "run", ranks=5, suspects=[2])
    process = workshop.start(
        "tensorboard",
        "run",
        "--per-rank-view",
        limit,
        "--",
        "--port",
        "0",
        data_server,
        "--reload_interval",
        "1",
    )
    wait_until(lambda: "Press CTRL+C" in workshop.stderr, seconds=60)
    address = re.search(r"http://\S+", workshop.stderr)
    assert address is not None

    def shown() -> set[str]:
        # The address is TensorBoard's own.
        with urllib.request.urlopen(f"{address[0]}data/runs", timeout=10) as answer:  # noqa: S310
            return set(json.load(answer))

    wait_until(lambda: shown() == runs)
    process.send_signal(how_to_end)
    assert process.wait(30) == 0
    assert not list(workshop.sockets.glob("crossrank-*")), "the temporary folder of links was left behind"
