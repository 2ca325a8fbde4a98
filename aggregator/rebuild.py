"""Wires the merge from files: the ranks' event files through the same pipeline as live, published by rename."""

from __future__ import annotations

import math
import shutil
import sys
from typing import TYPE_CHECKING

from aggregator.align import Aligner
from aggregator.detect import DetectionSettings, PeerGroups, default_detectors
from aggregator.live import resume
from aggregator.offline.earlier_merge import EarlierMerge
from aggregator.offline.merge_files import find_rank_folders, merge_files
from aggregator.offline.publish import part_of, publish
from aggregator.pipeline import Pipeline
from aggregator.sinks import run_file
from aggregator.sinks.findings import FindingsFile, clocked_lines, keep_unfound
from aggregator.sinks.group import SinkGroup
from aggregator.sinks.merged_runs import MergedRuns
from rankside.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def merge_run(
    roots: Sequence[Path],
    *,
    output: Path,
    detect: tuple[str, ...] = (),
    layout: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[str, ...]:
    """Merge the rank folders below the roots into `output`: merged runs and findings, published by rename.

    layout: sizes of the parallel layout; None for the ranks' places in the first root's run.json, if it has any.
    Where `output` is a run's folder, an aggregator of that run can go on from there, and points of its merged curves
    that ranks could not write to a full disk are kept, with what was found in them. Rank files are only read.
    Findings that need a clock (stalled, silent) are kept from the file that is replaced. Returns what was damaged
    in the rank files, a line each. Raises `ConfigError` where there is nothing to merge, and OSError where the
    output cannot be written; what is published then is as it was.
    """
    folders = find_rank_folders(roots)
    settings = DetectionSettings.from_pairs(detect)
    run = run_file.read(roots[0] / "run.json")
    places = run_file.layout(run)
    if layout is not None:
        groups = PeerGroups.from_layout(layout)
    elif places:
        groups = PeerGroups.from_coordinates(places)
    else:
        groups = PeerGroups()
    in_place = output.resolve() in {root.resolve() for root in roots}
    if in_place:
        _check_whole(run, folders)
    merged, findings = output / "merged", output / "findings.jsonl"
    part = part_of(merged)
    damages: list[str] = []
    sinks = SinkGroup()
    runs = MergedRuns(part, session_start=0)
    aligner = Aligner(max_wait_seconds=math.inf, max_lag_steps=sys.maxsize)
    keeping = in_place and _files_lack_values(run)
    steps = EarlierMerge(merged, runs, table=aligner.table) if keeping else runs
    sinks.add("merged runs", steps=steps, findings=runs)
    findings_part = findings.with_name(f".{findings.name}.part")
    findings_part.write_text("".join(clocked_lines(findings)), encoding="utf-8")
    sinks.add("findings", findings=FindingsFile(findings_part, quiet=True))
    pipeline = Pipeline(aligner, default_detectors(settings, groups), sinks)
    try:
        merge_files(
            folders,
            pipeline,
            declared=run_file.declared_tags(run),
            void=run_file.void(run),
            on_damage=lambda error: damages.append(str(error)),
            progress=progress,
        )
        pipeline.close()
        if sinks.failures:
            raise OSError(f"what was merged could not be written to {output} ({sinks.last_error})")
        if keeping:
            keep_unfound(findings_part, findings)
        publish(part, merged)
        findings_part.replace(findings)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        findings_part.unlink(missing_ok=True)
    resume.settle(output, closed_until=aligner.closed_until)
    if in_place:
        run_file.tell_merged(output / "run.json", last_step=aligner.closed_until)
    return tuple(damages)


def _files_lack_values(run: Mapping[str, object]) -> bool:
    """Whether ranks could not write all that the merged curves may hold."""
    return run_file.counts(run).get("unwritten", 0) > 0


def _check_whole(run: Mapping[str, object], folders: Mapping[int, Path]) -> None:
    """Raise `ConfigError` where the merged curves hold a rank of which there are no files to merge anew."""
    ranks = run.get("ranks")
    reported = {
        rank
        for of_kind in (ranks.values() if isinstance(ranks, dict) else ())
        for rank in of_kind
        if type(rank) is int
    }
    if missing := sorted(reported - set(folders)):
        raise ConfigError(
            f"ranks {', '.join(map(str, missing))} reported, but their files are not here, and merging would drop "
            "them: name the folders that hold them as well, or another --output"
        )
