"""`crossrank merge` makes from anybody's rank files what the run itself would have made."""

from __future__ import annotations

import fcntl
import json
import os
import shutil

import numpy as np
import oracle
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter as TensorBoardWriter
from tensorboardX import SummaryWriter

from launch.cli import main
from rankside.eventfile import EventFileWriter
from rankside.tags import Tag


@pytest.fixture
def run_dir(tmp_path):
    """A run of three ranks, written by crossrank, TensorBoard and tensorboardX; rank 2 restarts at step 15."""
    folder = tmp_path / "run"
    chance = np.random.default_rng(5)
    ours = EventFileWriter(folder / "rank_0")
    theirs = TensorBoardWriter(str(folder / "rank_1"))
    for step in range(1, 21):
        ours.write_scalars(step, [Tag("loss"), Tag("lr")], chance.normal(size=2))
        value = Summary.Value(tag="loss", simple_value=chance.normal() if step != 7 else np.nan)
        theirs.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[value])))
    ours.close()
    theirs.close()
    with SummaryWriter(str(folder / "rank_2")) as first:
        for step in range(1, 19):
            first.add_scalar("loss", chance.normal(), step)
    again = EventFileWriter(folder / "rank_2")
    again.write_session_start(15)
    for step in range(15, 21):
        again.write_scalars(step, [Tag("loss")], chance.normal(size=1))
    again.close()
    return folder


def test_the_merged_curves_are_those_of_a_plain_computation(run_dir, capsys):
    assert main(["merge", str(run_dir)]) == 0
    oracle.compare(run_dir, oracle.expected(run_dir))
    assert str(run_dir / "merged") in capsys.readouterr().out


def test_merging_again_changes_nothing_that_tensorboard_shows(run_dir):
    right = oracle.expected(run_dir)
    readers = {}
    for _ in range(3):
        assert main(["merge", str(run_dir)]) == 0
        oracle.compare(run_dir, right)
        readers = readers or {name: oracle.open_run(run_dir / "merged" / name) for name in right}
        oracle.compare(run_dir, right, readers)


@pytest.mark.parametrize("unwritten", [0, 20])
def test_points_that_ranks_could_not_write_are_kept_where_the_run_says_that_there_are_any(
    tmp_path, unwritten
):
    folder = tmp_path / "run"

    def write(rank, steps):
        shutil.rmtree(folder / f"rank_{rank}", ignore_errors=True)
        writer = EventFileWriter(folder / f"rank_{rank}")
        for step in steps:
            tags = [Tag("loss"), Tag("lr")] if rank == 0 else [Tag("loss")]
            loss = np.nan if (rank, step) == (1, 18) else np.sin(step + rank)
            writer.write_scalars(step, tags, np.array([loss, 0.1])[: len(tags)])
        writer.close()

    for rank in (0, 1):
        write(rank, range(1, 21))
    assert main(["merge", str(folder)]) == 0
    whole, findings = oracle.expected(folder), (folder / "findings.jsonl").read_text()
    assert "loss is NaN since step 18" in findings
    write(0, [*range(2, 11), 15])
    write(1, range(1, 13))
    (folder / "run.json").write_text(json.dumps({"counts": {"unwritten": unwritten}}))
    right = whole if unwritten else oracle.expected(folder)
    for _ in range(2):
        assert main(["merge", str(folder)]) == 0
        oracle.compare(folder, right)
        assert (folder / "findings.jsonl").read_text() == (findings if unwritten else "")


def test_ranks_in_several_folders_are_merged_elsewhere_and_only_read(run_dir, tmp_path):
    (tmp_path / "node").mkdir()
    (run_dir / "rank_2").rename(tmp_path / "node" / "rank_2")
    before = _content(run_dir) | _content(tmp_path / "node")
    output = tmp_path / "out"
    assert main(["merge", str(run_dir), str(tmp_path / "node"), "--output", str(output)]) == 0
    assert _content(run_dir) | _content(tmp_path / "node") == before
    for rank, folder in ((0, run_dir), (1, run_dir), (2, tmp_path / "node")):
        (output / f"rank_{rank}").symlink_to(folder / f"rank_{rank}")
    oracle.compare(output, oracle.expected(output))
    assert (output / "findings.jsonl").exists()


def test_a_damaged_file_is_named_and_what_stands_before_the_damage_is_merged(run_dir, capsys):
    path = next((run_dir / "rank_0").iterdir())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert main(["merge", str(run_dir)]) == 0
    assert str(path) in capsys.readouterr().err
    reader = oracle.open_run(run_dir / "merged")
    reader.Reload()
    seen = dict(oracle.scalars(reader)["loss/ranks_seen"])
    assert (seen[1], seen[20]) == (3, 2)


def test_where_nothing_is_to_merge_nothing_is_made(tmp_path, capsys):
    assert main(["merge", str(tmp_path / "none")]) == 2
    assert "no rank_<id> folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_same_rank_in_two_folders_is_refused(run_dir, capsys):
    assert main(["merge", str(run_dir), str(run_dir)]) == 2
    assert "rank 0 stands in" in capsys.readouterr().err


def test_where_the_output_cannot_be_written_what_was_there_stays(run_dir, capsys):
    assert main(["merge", str(run_dir)]) == 0
    before = _content(run_dir)
    (run_dir / ".merged.part").write_text("in the way")
    assert main(["merge", str(run_dir)]) == 1
    (run_dir / ".merged.part").unlink()
    assert _content(run_dir) == before
    assert "cannot merge into" in capsys.readouterr().err


def test_a_run_that_still_goes_on_is_left_alone(run_dir, capsys):
    claim = os.open(run_dir, os.O_RDONLY)
    fcntl.flock(claim, fcntl.LOCK_EX)
    try:
        assert main(["merge", str(run_dir)]) == 2
    finally:
        os.close(claim)
    assert "still goes on" in capsys.readouterr().err
    assert not (run_dir / "merged").exists()


def test_a_given_layout_says_which_ranks_must_hold_equal_parameters(tmp_path):
    """Two pipeline stages of two replicas each: the second ones part at step 5."""
    folder = tmp_path / "run"
    for rank, fingerprint in enumerate((7.0, 7.0, 9.0, 8.0)):
        with SummaryWriter(str(folder / f"rank_{rank}")) as writer:
            for step in range(1, 21):
                writer.add_scalar("param-fingerprint", fingerprint if step >= 5 or rank < 3 else 9.0, step)
    compared = {}
    for name, layout in {"all": [], "stages": ["--layout", "dp=2,pp=2"]}.items():
        output = tmp_path / name
        assert main(["merge", str(folder), "--output", str(output), *layout]) == 0
        lines = map(json.loads, (output / "findings.jsonl").read_text().splitlines())
        compared[name] = {
            (line["first_step"], *line["ranks"]) for line in lines if line["kind"] == "mismatch"
        }
    assert min(compared["all"])[0] == 1
    assert compared["stages"] == {(5,)}  # of two replicas nobody can tell which one is wrong


def _content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
