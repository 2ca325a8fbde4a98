"""`run.json` and `findings.jsonl` are well-formed whatever they are told, and one sink's fault stays its own."""

from __future__ import annotations

import json

import numpy as np

from aggregator.detect.finding import Finding
from aggregator.merge import merge
from aggregator.sinks.findings import FindingsFile
from aggregator.sinks.group import SinkGroup
from aggregator.sinks.run_file import RunFile
from aggregator.sinks.sink import ClosedStep
from aggregator.step import StepMatrix
from rankside import window
from rankside.tags import Tag, TagKind


def closed(*findings, step=1):
    tags = [Tag("loss", TagKind.LOCAL, "nats", "of this rank")]
    matrix = StepMatrix(step, tags, np.array([0]), window.single(np.ones((2, 1))))
    return ClosedStep(matrix, merge(matrix), findings)


def finding(**evidence):
    return Finding(
        kind="outlier", ranks=(1, 2), tag="loss\n", first_step=1, step=2, persistence="transient",
        score=float("inf"), evidence=evidence, message='rank "1" é',
    )  # fmt: skip


def refuse(token):
    raise AssertionError(f"{token} is not JSON")


def test_a_finding_is_one_line_of_strict_json(tmp_path):
    sink = FindingsFile(tmp_path / "findings.jsonl")
    sink.announce(finding(value=float("nan"), list=[1, float("-inf")], deep={"a": (1.5,)}))
    sink.announce(finding())
    lines = (tmp_path / "findings.jsonl").read_text(encoding="utf-8").splitlines()
    sink.close()
    first, _ = (json.loads(line, parse_constant=refuse) for line in lines)
    assert first["ranks"] == [1, 2]
    assert (first["score"], first["evidence"]["value"], first["evidence"]["list"]) == (
        "inf",
        "nan",
        [1, "-inf"],
    )


def test_the_run_file_keeps_what_others_wrote_and_names_the_tags(tmp_path):
    path = tmp_path / "run.json"
    path.write_text('{"command": "msrun"}')
    sink = RunFile(path, lambda: {"last_step": 3})
    sink.write(closed())
    sink.flush()
    content = json.loads(path.read_text(), parse_constant=refuse)
    assert (content["command"], content["last_step"]) == ("msrun", 3)
    assert content["tags"] == {"loss": {"kind": "local", "unit": "nats", "description": "of this rank"}}
    sink.close()
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_damaged_run_file_is_written_anew(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b'{"a": \xff')
    RunFile(path, dict).close()
    assert json.loads(path.read_text()) == {"tags": {}}


def test_a_sink_that_fails_is_counted_and_starves_no_other():
    class Broken:
        def write(self, _):
            raise OSError("full")

        flush = close = lambda self: self.write(None)

    class Kept(list):
        write = list.append

        def flush(self):
            pass

        close = flush

    group, kept = SinkGroup(), Kept()
    group.add("broken", steps=Broken())
    group.add("kept", steps=kept)
    for step in (1, 2):
        group.write(closed(step=step))
    assert not group.flush()
    group.close()
    assert len(kept) == 2
    assert group.failures == {"broken": 4}
