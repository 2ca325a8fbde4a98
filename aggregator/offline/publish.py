"""Puts a freshly merged folder in the place of an older one by renaming, so that no reader sees half of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def part_of(folder: Path) -> Path:
    """Return the empty folder in which the new content is made; what an interrupted run left there is removed."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def publish(part: Path, folder: Path) -> None:
    """Rename the new content into place and remove the old. Raises OSError where that cannot be done."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
