"""Checks single settings, and says of one that cannot be used its name and what is expected."""

from __future__ import annotations

import math
import operator
from pathlib import Path

from rankside.errors import ConfigError


def whole(name: str, value: object, *, least: int, most: int) -> int:
    """Return a whole number of any kind, such as numpy's, as an int; raises `ConfigError` for anything else."""
    try:
        number = least - 1 if _is_bool(value) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise ConfigError(f"{name}={value!r}: a whole number from {least} to {most} is expected")
    return number


def seconds(name: str, value: object) -> float:
    """Return a time as a float; raises `ConfigError` unless it is a finite number above 0."""
    try:
        number = math.nan if _is_bool(value) or isinstance(value, (str, bytes)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(f"{name}={value!r}: a positive number of seconds is expected")
    return number


def path(name: str, value: object) -> Path:
    """Return a path that stays where it is when the process changes its folder.

    Raises `ConfigError` unless it is a `Path` or a string that is not empty.
    """
    if not isinstance(value, (str, Path)) or not str(value).strip() or "\0" in str(value):
        raise ConfigError(f"{name}={value!r}: a path is expected")
    try:
        return Path(value).absolute()
    except OSError:  # the current folder is deleted: whoever writes there will say so
        return Path(value)


def flag(name: str, value: object) -> bool:
    """Return a bool; raises `ConfigError` for anything else."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: True or False is expected")
    return value


def _is_bool(value: object) -> bool:
    return type(value).__name__ in ("bool", "bool_")
