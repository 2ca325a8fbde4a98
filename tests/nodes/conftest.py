"""Gives each test two hosts with a place to work on each, and ends what it started there."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from network import Network
from node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def network() -> Iterator[Network]:
    """Yield two joined hosts; skips where the system does not allow them."""
    joined = Network()
    yield joined
    joined.close()


@pytest.fixture
def nodes(network: Network, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Yield a place on each host; fails when a process outlives the test."""
    first, second = (Node(host, tmp_path / f"node{rank}", rank) for rank, host in enumerate(network.hosts))
    yield first, second
    left = {**first.workshop.processes(), **second.workshop.processes()}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"
