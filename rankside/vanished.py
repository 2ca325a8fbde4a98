"""Ends the curves of ranks that a run which starts again with fewer ranks no longer has.

What such a rank wrote from the step on where the others begin again is as void as what they wrote themselves;
but it does not start again to say so. Rank 0 does it instead, with a session start in a file of its own in
that rank's folder.
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
    run_dir: Path, *, world_size: int, step: int, wall_clock: Callable[[], float] = time.time
) -> None:
    """Make void from this step on what the ranks from `world_size` on have written, as far as it is here.

    Raises OSError where that cannot be written.
    """
    for folder in run_dir.iterdir() if run_dir.is_dir() else ():
        match = _RANK_FOLDER.fullmatch(folder.name)
        if match and int(match[1]) >= world_size and any(folder.glob(f"{FILE_PREFIX}*")):
            writer = EventFileWriter(folder, wall_clock=wall_clock)
            writer.write_session_start(step)
            writer.close()
