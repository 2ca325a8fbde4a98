"""Ends the curves of ranks that a run which starts again with fewer ranks no longer has.

What such a rank wrote from the step on where the others begin again is as void as what they wrote themselves;
but it does not start again to say so. The first rank of each disk does it instead, with a session start in a file
of its own in that rank's folder. A disk on which no rank runs any more keeps the void points: the aggregator says
in run.json which they are, so that merging leaves them out.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rankside.eventfile import FILE_PREFIX, EventFileWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_RANK_FOLDER = re.compile(r"rank_(\d+)")


def end_vanished(
    run_dir: Path,
    *,
    rank: int,
    world_size: int,
    step: int,
    wall_clock: Callable[[], float] = time.time,
) -> None:
    """Make void from this step on what the ranks from `world_size` on have written, where `rank` is the first here.

    Raises OSError where that cannot be written.
    """
    if rank > 0 and (run_dir / "rank_0").is_dir():
        return  # the usual case, without listing the folders of all ranks
    folders = {
        int(match[1]): folder
        for folder in run_dir.glob("rank_*")
        if (match := _RANK_FOLDER.fullmatch(folder.name))
    }
    if min(folders, default=rank) < rank:
        return
    for vanished, folder in folders.items():
        if vanished >= world_size and any(folder.glob(f"{FILE_PREFIX}*")):
            writer = EventFileWriter(folder, wall_clock=wall_clock)
            writer.write_session_start(step)
            writer.close()
