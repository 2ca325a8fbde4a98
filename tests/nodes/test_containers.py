"""A container per node is the same as a node."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from curves import check_merged, scalars
from workshop import wait_until

from rankside import keys

if TYPE_CHECKING:
    from pathlib import Path

    from container import Container
    from node import Node

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]


@pytest.fixture
def keyed(contained_nodes: tuple[Node, Node], tmp_path: Path) -> tuple[Node, Node]:
    """The nodes, each with a copy of the key in its own file system."""
    keys.generate(tmp_path / "key")
    for node in contained_nodes:
        shutil.copy(tmp_path / "key", node.workshop.folder / "key")
    return contained_nodes


def test_containers_write_one_run_and_its_merged_curves_are_numpys(keyed: tuple[Node, Node]) -> None:
    """Process numbers of the one are no numbers of the other's, and host names and folders are their own."""
    root, other = keyed
    for node in keyed:
        node.train("--key", "key", master=root.host.address, steps=100)
    assert [node.wait() for node in keyed] == [0, 0], root.stderr + other.stderr
    check_merged(root.run_dir / "merged", [root.run_dir / "rank_0", other.run_dir / "rank_1"], steps=100)
    entries = json.loads((root.run_dir / "run.json").read_text())
    assert entries["ranks"] == {"live": [], "left": [0, 1], "lost": []}
    assert (root.run_dir / "findings.jsonl").read_text() == ""


def test_containers_that_are_stopped_end_in_order_with_what_was_trained(
    keyed: tuple[Node, Node], containers: tuple[Container, Container]
) -> None:
    root, other = keyed
    for node in keyed:
        node.train("--key", "key", master=root.host.address, steps=5000)
    wait_until(lambda: all(len(_losses(node)) > 20 for node in keyed), seconds=100)
    for container in containers:
        container.signal("TERM")
    assert [node.wait() for node in keyed] == [143, 143], root.stderr + other.stderr
    assert _losses(root).keys() <= scalars(root.run_dir / "merged" / "mean")["loss"].keys()


def _losses(node: Node) -> dict[int, float]:
    """Return what the node's only rank has written so far."""
    written = [scalars(folder) for folder in node.logdir.glob("*/rank_*")]
    return written[0].get("loss", {}) if written else {}
