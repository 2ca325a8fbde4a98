"""Gives each test a workshop of its own, and fails when a process outlives it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Yield a workshop; fails when a process or a socket folder outlives the test."""
    place = Workshop(tmp_path)
    yield place
    left = place.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"
