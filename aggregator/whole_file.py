"""Writes files that others read whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_whole(path: Path, content: bytes) -> None:
    """Put the content in the place of the file by renaming. Raises OSError; the file is then as it was."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
