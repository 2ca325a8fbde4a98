"""The summary tells what the files of a run say, and never more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from launch.summary import read_findings, summary

if TYPE_CHECKING:
    from pathlib import Path


def _write(run_dir: Path, *findings: dict[str, object] | str, **entries: object) -> None:
    lines = [finding if isinstance(finding, str) else json.dumps(finding) for finding in findings]
    (run_dir / "findings.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (run_dir / "run.json").write_text(
        json.dumps({"ranks": {"live": [], "left": [0, 1], "lost": []}, **entries})
    )


def _finding(message: str, **more: object) -> dict[str, object]:
    return {"kind": "outlier", "ranks": [1], "tag": "loss", "message": message, **more}


def _text(run_dir: Path, *, complete: bool = True) -> str:
    return "\n".join(summary(run_dir, complete=complete))


def test_findings_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    _write(tmp_path, _finding("first"), _finding("second"))
    assert _text(tmp_path).endswith("findings:  2\n  [outlier] first\n  [outlier] second")


def test_of_the_lines_of_one_finding_the_newest_is_told(tmp_path: Path) -> None:
    _write(tmp_path, _finding("opened", id="a"), _finding("other", id="b"), _finding("closed", id="a"))
    assert _text(tmp_path).endswith("findings:  2\n  [outlier] closed\n  [outlier] other")


def test_what_is_not_told_is_counted(tmp_path: Path) -> None:
    _write(tmp_path, *(_finding(f"number {n}") for n in range(13)))
    assert "number 9" in _text(tmp_path)
    assert "number 10" not in _text(tmp_path)
    assert f"and 3 more in {tmp_path / 'findings.jsonl'}" in _text(tmp_path)


def test_a_torn_line_is_counted_and_the_others_are_told(tmp_path: Path) -> None:
    _write(tmp_path, _finding("whole"), '{"kind": "out', "[]", '{"kind": "x"}')
    assert "3 lines of findings.jsonl cannot be read" in _text(tmp_path)
    assert "whole" in _text(tmp_path)


def test_no_finding_is_said_only_of_a_run_that_ended_in_order(tmp_path: Path) -> None:
    _write(tmp_path)
    assert "no finding" in _text(tmp_path)
    assert "no finding" not in _text(tmp_path, complete=False)
    assert "did not finish" in _text(tmp_path, complete=False)


def test_a_run_in_which_no_rank_reported_is_not_called_healthy(tmp_path: Path) -> None:
    _write(tmp_path, ranks={"live": [], "left": [], "lost": []})
    assert "no finding" not in _text(tmp_path)
    assert "no rank has reported" in _text(tmp_path)


def test_ranks_that_are_gone_without_a_goodbye_are_named(tmp_path: Path) -> None:
    _write(tmp_path, ranks={"live": [], "left": [0], "lost": [1, 2]})
    assert "gone without a goodbye: ranks 1, 2" in _text(tmp_path)


def test_incomplete_merged_curves_are_told(tmp_path: Path) -> None:
    _write(tmp_path, incomplete="rank 3 is elsewhere")
    assert "merged curves are incomplete: rank 3 is elsewhere" in _text(tmp_path)


def test_a_missing_findings_file_is_not_taken_for_health(tmp_path: Path) -> None:
    assert "unknown" in _text(tmp_path)
    assert read_findings(tmp_path) is None


def test_where_the_end_of_a_run_could_not_be_written_it_is_said_what_completes_it(tmp_path: Path) -> None:
    _write(tmp_path, last_step=7)
    assert f"may end with step 7; once it is mended, complete them with: crossrank merge {tmp_path}" in _text(
        tmp_path
    )
    _write(tmp_path, last_step=7, merged_from="live")
    assert "crossrank merge" not in _text(tmp_path)
