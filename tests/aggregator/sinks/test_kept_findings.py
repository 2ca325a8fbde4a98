"""What an earlier merge found is kept, and a line that was cut short stops nothing."""

from __future__ import annotations

import json

from aggregator.sinks.findings import clocked_lines, keep_unfound


def _line(kind: str, name: str) -> str:
    return json.dumps({"kind": kind, "id": name}) + "\n"


def test_a_line_that_was_cut_short_is_left_out_and_the_others_are_kept(tmp_path):
    earlier, new = tmp_path / "findings.jsonl", tmp_path / "new.jsonl"
    cut = b'[1]\n{"kind": "outlier", "id": "c\xc3'
    earlier.write_bytes((_line("silent", "a") + _line("outlier", "b")).encode() + cut)
    new.write_text(_line("outlier", "d"))
    assert clocked_lines(earlier) == [_line("silent", "a")]
    keep_unfound(new, earlier)
    assert new.read_text() == _line("silent", "a") + _line("outlier", "b") + _line("outlier", "d")
