"""The state that lets an aggregator continue where an earlier one of the same run was killed, without a hole.

`aggregator.state` is published after each flush of the merged files, and says how long each of them was then,
which step they end with, and what was stored of each rank. On resuming, everything written after that is cut
off again: the ranks still keep it, since it was not acknowledged, and send it again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from aggregator.live.service import StoredRank

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOGGER = logging.getLogger("crossrank")
STATE_NAME = "aggregator.state"
_VERSION = 1


class State(NamedTuple):
    """Where an aggregator stood.

    closed_until: the step that the merged files end with. world_size: as far as it was known. ranks: what was
    stored of each. sizes: bytes of every file that is continued, by its path below the run folder.
    """

    closed_until: int
    world_size: int
    ranks: Mapping[int, StoredRank]
    sizes: Mapping[str, int]


def publish(run_dir: Path, state: State) -> None:
    """Replace the state file. Raises OSError where that cannot be done."""
    ranks = [[rank, *stored] for rank, stored in state.ranks.items()]
    part = run_dir / f".{STATE_NAME}.part"
    part.write_bytes(
        msgpack.packb([_VERSION, state.closed_until, state.world_size, ranks, dict(state.sizes)])
    )
    part.replace(run_dir / STATE_NAME)


def load(run_dir: Path) -> State | None:
    """Return the state that an earlier aggregator left, or None where there is none that can be read."""
    path = run_dir / STATE_NAME
    try:
        version, closed_until, world_size, ranks, sizes = msgpack.unpackb(path.read_bytes())
        stored = {rank: StoredRank(incarnation, sequence) for rank, incarnation, sequence in ranks}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        _LOGGER.warning("%s cannot be read and is not used: %s", path, error)
        return None
    return State(closed_until, world_size, stored, sizes) if version == _VERSION else None


def measure(run_dir: Path) -> dict[str, int]:
    """Return the size of every file that an aggregator of this run continues, by its path below the folder."""
    return {str(path.relative_to(run_dir)): path.stat().st_size for path in _continued(run_dir)}


def cut_back(run_dir: Path, sizes: Mapping[str, int]) -> None:
    """Cut the continued files to these sizes; remove those that were begun later."""
    for path in _continued(run_dir):
        size = sizes.get(str(path.relative_to(run_dir)))
        if size is None:
            path.unlink()
        elif path.stat().st_size > size:
            with path.open("r+b") as file:
                file.truncate(size)


def _continued(run_dir: Path) -> list[Path]:
    findings = [path for path in (run_dir / "findings.jsonl",) if path.exists()]
    return [*findings, *sorted((run_dir / "merged").rglob("events.out.tfevents.*"))]
