"""Gives each test two hosts with a place to work on each, and ends what it started there."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from container import Container
from network import Network
from node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from network import Host


@pytest.fixture
def network() -> Iterator[Network]:
    """Yield two joined hosts; skips where the system does not allow them."""
    joined = Network()
    yield joined
    joined.close()


@pytest.fixture
def containers(network: Network, tmp_path: Path) -> Iterator[tuple[Container, Container]]:
    """Yield a container on each host; skips where no container runtime runs."""
    first, second = (Container(host, tmp_path / f"bundle{rank}") for rank, host in enumerate(network.hosts))
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def nodes(network: Network, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Yield a place on each host; fails when a process outlives the test."""
    yield from _nodes(network.hosts, tmp_path)


@pytest.fixture
def contained_nodes(containers: tuple[Container, Container], tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Yield a place in each container; fails when a process outlives the test."""
    yield from _nodes(containers, tmp_path)


def _nodes(hosts: Sequence[Host | Container], folder: Path) -> Iterator[tuple[Node, Node]]:
    first, second = (Node(host, folder / f"node{rank}", rank) for rank, host in enumerate(hosts))
    yield first, second
    left = {**first.workshop.processes(), **second.workshop.processes()}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"
