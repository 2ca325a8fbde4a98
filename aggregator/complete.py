"""Decides at the end of a run whether the live merge holds everything, and merges anew from the files where not."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from aggregator.detect.words import name_ranks
from aggregator.live import resume
from aggregator.live.members import Presence
from aggregator.offline.merge_files import find_rank_folders
from aggregator.rebuild import merge_run
from aggregator.sinks import run_file
from rankside.errors import ConfigError, CrossrankError

if TYPE_CHECKING:
    from pathlib import Path

    from aggregator.align import Aligner
    from aggregator.live.service import Service
    from aggregator.sinks.group import SinkGroup

_LOGGER = logging.getLogger("crossrank")


def complete(
    run_dir: Path, aligner: Aligner, service: Service, sinks: SinkGroup, *, continues_whole: bool
) -> None:
    """Make the merged curves complete as far as the rank files that are here allow, and say so in run.json.

    continues_whole: whether the merged files lacked nothing when this aggregator began. A failure is said in the
    log and in run.json, and leaves the merged curves as they are.
    """
    reasons = _reasons(run_dir, aligner, service, sinks, continues_whole=continues_whole)
    try:
        if reasons:
            entries = {"merged_from": "files", "because": reasons, **_merge(run_dir, service)}
            outcome = entries.get("incomplete", "completed from the rank files")
            _LOGGER.info("merged curves: %s (%s)", outcome, "; ".join(reasons))
        else:
            entries = {"merged_from": "live"}
            resume.settle(run_dir, closed_until=aligner.closed_until)
        run_json = run_dir / "run.json"
        others = {
            name: entry for name, entry in run_file.read(run_json).items() if name not in run_file.OUTCOME
        }
        run_file.publish(run_json, json.dumps({**others, **entries}, indent=2))
    except OSError as error:
        _LOGGER.warning("how the run ended cannot be written: %s", error)


def _merge(run_dir: Path, service: Service) -> dict[str, object]:
    """Merge from the files; return what run.json has to say of it where that does not make the curves complete."""
    missing = sorted(m.hello.rank for m in service.members if not (run_dir / f"rank_{m.hello.rank}").is_dir())
    if missing:
        return {
            "merged_from": "live",
            "incomplete": f"some values came late or were lost, and the files of {name_ranks(missing)} are not here; "
            "`crossrank merge` with every folder that holds rank files completes the merged curves",
        }
    try:
        damages = merge_run([run_dir], output=run_dir)
    except (OSError, CrossrankError) as error:
        state = resume.load(run_dir)
        return {
            "merged_from": "live",
            "incomplete": f"merging from the rank files failed: {error}; what is on disk ends with step "
            f"{state.closed_until if state else 0}; once that is mended, `crossrank merge {run_dir}` completes it",
        }
    return {"damaged": damages} if damages else {}


def _reasons(
    run_dir: Path, aligner: Aligner, service: Service, sinks: SinkGroup, *, continues_whole: bool
) -> list[str]:
    """Return why the live merge may lack a value that some rank has written; empty where it does not."""
    counts = aligner.counts
    found = {
        "reports came late": counts.late,
        "steps closed without a rank": counts.incomplete,
        "times closed steps were reopened by a restart": counts.reopened,
        "blocks were lost": service.lost,
        "ranks started again without a goodbye": service.members.abandoned,
        "failures to write": sum(sinks.failures.values()),
    }
    reasons = [f"{count} {what}" for what, count in found.items() if count]
    if not continues_whole:
        reasons.append("an earlier aggregator of this run did not end in order")
    unheard = _unheard(run_dir, service)
    if unheard:
        reasons.append(f"not heard to the end: {name_ranks(unheard)}")
    return reasons


def _unheard(run_dir: Path, service: Service) -> list[int]:
    """Return the ranks that did not say goodbye, and those that have a folder here but never came."""
    try:
        written = set(find_rank_folders([run_dir]))
    except ConfigError:
        written = set()
    came = {member.hello.rank: member.presence for member in service.members}
    return sorted(rank for rank in written | set(came) if came.get(rank) is not Presence.LEFT)
