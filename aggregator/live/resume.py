"""The state that lets an aggregator continue where an earlier one of the same run was killed, without a hole.

`aggregator.state` is published after each flush of the merged files, and says how long each of them was then,
which step they end with, and what was stored of each rank. On resuming, everything written after that is cut
off again: the ranks still keep it, since it was not acknowledged, and send it again. Files are emptied rather
than removed, because a TensorBoard that has one open looks for newer ones only as long as it exists.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from aggregator.live.service import StoredRank
from aggregator.whole_file import replace_whole
from rankside.eventfile import FILE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOGGER = logging.getLogger("crossrank")
STATE_NAME = "aggregator.state"
_VERSION = 2


class State(NamedTuple):
    """Where an aggregator stood.

    closed_until: the step that the merged files end with. world_size: as far as it was known. ranks: what was
    stored of each. sizes: bytes of every file that is continued, by its path below the run folder. complete: the
    merged files hold everything that the ranks had written, and nobody reports any more.
    """

    closed_until: int
    world_size: int
    ranks: Mapping[int, StoredRank]
    sizes: Mapping[str, int]
    complete: bool = False


def publish(run_dir: Path, state: State) -> None:
    """Replace the state file. Raises OSError where that cannot be done."""
    ranks = [[rank, *stored] for rank, stored in state.ranks.items()]
    entries = [_VERSION, state.closed_until, state.world_size, ranks, dict(state.sizes), state.complete]
    replace_whole(run_dir / STATE_NAME, msgpack.packb(entries))


def load(run_dir: Path) -> State | None:
    """Return the state that an earlier aggregator left, or None where there is none that can be read."""
    path = run_dir / STATE_NAME
    try:
        version, *entries = msgpack.unpackb(path.read_bytes())
        if version != _VERSION:
            return None
        closed_until, world_size, ranks, sizes, complete = entries
        stored = {rank: StoredRank(incarnation, sequence) for rank, incarnation, sequence in ranks}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        _LOGGER.warning("%s cannot be read and is not used: %s", path, error)
        return None
    return State(closed_until, world_size, stored, sizes, complete)


def settle(run_dir: Path, *, closed_until: int) -> None:
    """Take note, where there is a state, that the merged files now hold everything up to this step.

    Raises OSError where that cannot be done.
    """
    state = load(run_dir)
    if state is not None:
        sizes = measure(run_dir)
        publish(run_dir, state._replace(closed_until=closed_until, sizes=sizes, complete=True))


def measure(run_dir: Path) -> dict[str, int]:
    """Return the size of every file that an aggregator of this run continues, by its path below the folder."""
    return {str(path.relative_to(run_dir)): path.stat().st_size for path in _continued(run_dir)}


def cut_back(run_dir: Path, state: State | None) -> bool:
    """Cut the continued files to the sizes in the state, and empty those that it does not know.

    Returns whether they now hold what the state says; without a state, whether there was nothing before.
    """
    sizes = state.sizes if state is not None else {}
    found = measure(run_dir)
    for name, size in found.items():
        if size > sizes.get(name, 0):
            os.truncate(run_dir / name, sizes.get(name, 0))
    if state is None:
        return not any(found.values()) and not any(run_dir.glob(f"rank_*/{FILE_PREFIX}*"))
    return all(found.get(name, 0) >= size for name, size in sizes.items())


def _continued(run_dir: Path) -> list[Path]:
    findings = [path for path in (run_dir / "findings.jsonl",) if path.exists()]
    return [*findings, *sorted((run_dir / "merged").rglob(f"{FILE_PREFIX}*"))]
