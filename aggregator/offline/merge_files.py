"""Runs the ranks' event files through the pipeline, as if all ranks had reported live and nothing had been late."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aggregator.offline.rank_history import RankHistory
from rankside.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from aggregator.pipeline import Pipeline
    from rankside.eventreader import OnDamage
    from rankside.tags import Tag

_RANK_FOLDER = re.compile(r"rank_(\d+)")
_INCARNATION = 0


def find_rank_folders(roots: Iterable[Path]) -> dict[int, Path]:
    """Return the `rank_<id>` folders below the roots, by rank.

    Raises `ConfigError` where there is none, or where two roots hold the same rank.
    """
    folders: dict[int, Path] = {}
    looked = []
    for root in roots:
        looked.append(str(root))
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            match = _RANK_FOLDER.fullmatch(path.name)
            if match is None or not path.is_dir():
                continue
            rank = int(match[1])
            if rank in folders:
                raise ConfigError(
                    f"rank {rank} stands in {folders[rank]} and in {path}; name only one of them"
                )
            folders[rank] = path
    if not folders:
        raise ConfigError(f"no rank_<id> folder in {', '.join(looked)}; name the folder of a run")
    return folders


def merge_files(
    folders: Mapping[int, Path],
    pipeline: Pipeline,
    *,
    declared: Mapping[str, Tag],
    void: Mapping[int, Sequence[tuple[int, int | None]]],
    on_damage: OnDamage | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Feed the ranks' files to the pipeline step by step, and flush it.

    declared: tags known better than by their name. void: what is void though the files do not say so, as
    the aligner has it. progress: told now and then how far it is.
    """
    aligner = pipeline.aligner
    histories: list[RankHistory] = []
    for rank, folder in sorted(folders.items()):
        progress(f"reading rank {rank} ({len(histories) + 1} of {len(folders)})")
        histories.append(
            RankHistory(
                rank,
                folder,
                table=aligner.table,
                declared=declared,
                void=void.get(rank, ()),
                on_damage=on_damage,
            )
        )
        aligner.join(rank, _INCARNATION, world_size=max(folders) + 1)
    for rank in set(range(max(folders) + 1)) - set(folders):
        aligner.join(rank, _INCARNATION, world_size=max(folders) + 1)
        aligner.leave(rank, _INCARNATION)
    last_steps = {history.rank: max(history.steps, default=-1) for history in histories}
    steps = sorted({step for history in histories for step in history.steps})
    for number, step in enumerate(steps):
        if number % 1000 == 0:
            progress(f"merging step {step} ({number} of {len(steps)})")
        for history in histories:
            for report in history.take(step):
                aligner.add(report, now=0.0)
            if last_steps[history.rank] <= step:
                aligner.leave(history.rank, _INCARNATION)
        pipeline.advance(now=0.0)
    pipeline.finish()
    pipeline.flush()
