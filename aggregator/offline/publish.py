"""Puts freshly merged event files in the place of older ones by renaming, so that no reader sees half of them.

A TensorBoard that has an older file open goes on to a newer one only as long as the older one exists, and reads
files in the order of their names. So the new file goes beside the old one, under a later name, and begins with
a session start, which makes void what stands before it; then the old one is emptied.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from rankside.eventfile import FILE_PREFIX, start_of, with_start

if TYPE_CHECKING:
    from pathlib import Path


def part_of(folder: Path) -> Path:
    """Return the empty folder in which the new content is made; what an interrupted run left there is removed."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def publish(part: Path, folder: Path) -> None:
    """Move the event files of `part`, subfolders included, into `folder`, and empty those that they replace.

    Raises OSError where that cannot be done.
    """
    for source in [part, *sorted(path for path in part.rglob("*") if path.is_dir())]:
        target = folder / source.relative_to(part)
        target.mkdir(parents=True, exist_ok=True)
        older = list(target.glob(f"{FILE_PREFIX}*"))
        fresh = sorted(source.glob(f"{FILE_PREFIX}*"))
        newest = max(map(start_of, older), default=-1)
        shift = max(0, newest + 1 - min(map(start_of, fresh), default=newest + 1))
        for path in fresh:
            path.rename(target / with_start(path.name, start_of(path) + shift))
        for path in older:
            os.truncate(path, 0)
    shutil.rmtree(part)
