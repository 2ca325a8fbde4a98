"""A job on two hosts gives one run: the root on node 0, a relay on node 1, CURVE between them."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from curves import check_merged, scalars
from workshop import wait_until

from rankside import keys

if TYPE_CHECKING:
    from pathlib import Path

    from network import Network
    from node import Node

_MANY = 1200
_CUT_SECONDS = 4.0

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys.generate(tmp_path / "key")
    return tmp_path / "key"


def _run_entries(node: Node) -> dict[str, object]:
    return json.loads((node.run_dir / "run.json").read_text())


def test_two_nodes_write_one_run_and_its_merged_curves_are_numpys(
    nodes: tuple[Node, Node], key: Path
) -> None:
    root, other = nodes
    for node in nodes:
        node.train("--key", str(key), master=root.host.address, steps=100)
    assert [node.wait() for node in nodes] == [0, 0], root.stderr + other.stderr
    assert root.run_dir.name == other.run_dir.name
    check_merged(root.run_dir / "merged", [root.run_dir / "rank_0", other.run_dir / "rank_1"], steps=100)
    entries = _run_entries(root)
    assert entries["merged_from"] == "live", entries
    assert "incomplete" not in entries
    assert entries["ranks"] == {"live": [], "left": [0, 1], "lost": []}
    assert sorted(path.name for path in other.run_dir.iterdir()) == ["rank_1"]


def test_nothing_is_lost_when_the_link_is_cut_and_the_relay_is_killed(
    network: Network, nodes: tuple[Node, Node], key: Path, tmp_path: Path
) -> None:
    root, other = nodes
    for node in nodes:
        node.train("--key", str(key), master=root.host.address, steps=_MANY)
    wait_until(lambda: _written(other) > 20_000, seconds=100)
    network.cut()
    cut_at = time.monotonic()
    wait_until(lambda: time.monotonic() > cut_at + _CUT_SECONDS)
    network.restore()
    before = _written(other)
    wait_until(lambda: _written(other) > before, seconds=60)
    (relay,) = other.relays()
    os.kill(relay, signal.SIGKILL)
    wait_until(lambda: other.relays() not in ([], [relay]))
    assert not _all_written(other), "training ended before the new relay came; give it more steps"
    assert [node.wait() for node in nodes] == [0, 0], root.stderr + other.stderr
    assert "the relay was killed by SIGKILL" in other.stderr
    ranks = [root.run_dir / "rank_0", other.run_dir / "rank_1"]
    check_merged(root.run_dir / "merged", ranks, steps=_MANY)
    entries = _run_entries(root)
    assert "incomplete" not in entries, entries
    assert entries["ranks"] == {"live": [], "left": [0, 1], "lost": []}
    again = tmp_path / "again"
    done = root.workshop.run("merge", str(root.run_dir), str(other.run_dir), "--output", str(again))
    assert done.returncode == 0, done.stderr
    for name in ("mean", "min", "max", "std"):
        assert scalars(again / "merged" / name) == scalars(root.run_dir / "merged" / name)


def test_nodes_that_share_their_log_folder_write_one_run_folder(
    nodes: tuple[Node, Node], key: Path, tmp_path: Path
) -> None:
    for node in nodes:
        node.logdir = tmp_path / "shared"
        node.train("--key", str(key), master=nodes[0].host.address, steps=50)
    assert [node.wait() for node in nodes] == [0, 0]
    run_dir = nodes[0].run_dir
    check_merged(run_dir / "merged", [run_dir / "rank_0", run_dir / "rank_1"], steps=50)


def test_a_node_with_another_key_is_refused_on_both_sides_and_trains_all_the_same(
    nodes: tuple[Node, Node], key: Path, tmp_path: Path
) -> None:
    root, other = nodes
    keys.generate(tmp_path / "other-key")
    for node, file in zip(nodes, (key, tmp_path / "other-key"), strict=True):
        node.train("--key", str(file), master=root.host.address, steps=50)
    assert [node.wait() for node in nodes] == [0, 0], root.stderr + other.stderr
    assert "turned away a connection" in root.stderr
    assert "--key must name the same file on every machine" in other.stderr
    for rank, node in enumerate(nodes):
        assert list(scalars(node.run_dir / f"rank_{rank}")["loss"]) == list(range(1, 51))


def test_a_node_without_a_key_is_refused_on_both_sides_and_its_command_runs_all_the_same(
    nodes: tuple[Node, Node], key: Path
) -> None:
    """The commands are stand-ins for msrun: node 0's waits for node 1's, which ends with a code of its own."""
    root, other = nodes
    done = root.workshop.folder / "done"
    root.stand_in(f"while [ ! -e {done} ]; do sleep 0.1; done", "--key", str(key), master=root.host.address)
    other.stand_in(f"touch {done}; exit 7", "--insecure", master=root.host.address)
    assert [node.wait() for node in nodes] == [0, 7], root.stderr + other.stderr
    assert "turned away a connection" in root.stderr
    assert "--key must name the same file on every machine" in other.stderr


def _written(node: Node) -> int:
    """Return how many bytes of curves the node's rank has written so far."""
    return sum(path.stat().st_size for path in node.logdir.glob("*/rank_*/events*"))


def _all_written(node: Node) -> bool:
    return _MANY in scalars(node.run_dir / "rank_1")["loss"]
