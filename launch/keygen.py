"""`crossrank keygen`: makes the key file that lets the machines of a job know each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launch.errors import UsageError
from launch.terminal import tell
from rankside import keys
from rankside.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def keygen(path: Path) -> int:
    """Write a new key file; raises UsageError where one is there, or it cannot be written."""
    try:
        keys.generate(path)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    tell(f"wrote {path}; copy it to every machine, readable by you alone, and give it with --key")
    return 0
