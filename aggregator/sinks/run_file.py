"""Keeps `run.json`: what the run is, what its tags mean, and what did not go the straight way. Published by rename."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from aggregator.whole_file import replace_whole
from rankside.tags import Tag, TagKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aggregator.sinks.sink import ClosedStep

OUTCOME = frozenset({"merged_from", "because", "incomplete", "damaged"})  # entries that say how the run ended


class RunFile:
    """The run's description; entries that others have written into the file are kept, but for an earlier outcome.

    status: returns the entries that change while the run goes on. Raises OSError where the file cannot be read.
    """

    def __init__(self, path: Path, status: Callable[[], Mapping[str, object]]) -> None:
        self._path = path
        self._status = status
        self._entries = {name: entry for name, entry in read(path).items() if name not in OUTCOME}
        self._published = ""
        self._tags: dict[str, object] = {}

    def write(self, closed: ClosedStep) -> None:
        """Take note of the step's tags."""
        tags = closed.matrix.tags
        if len(self._tags) < len(tags):
            self._tags = {
                tag.name: {"kind": tag.kind.value, "unit": tag.unit, "description": tag.description}
                for tag in tags
            }

    def flush(self) -> None:
        """Publish the file when something changed."""
        content = json.dumps({**self._entries, **self._status(), "tags": self._tags}, indent=2)
        if content != self._published:
            publish(self._path, content)
            self._published = content

    def close(self) -> None:
        """Publish the last state."""
        self.flush()


def read(path: Path) -> dict[str, object]:
    """Return the entries of the file, none where it does not exist or is not a JSON object."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def counts(entries: Mapping[str, object]) -> dict[str, int]:
    """Return the counts that the entries hold; what is not a count is passed over."""
    found = entries.get("counts")
    items = found.items() if isinstance(found, dict) else ()
    return {name: count for name, count in items if type(count) is int}


def layout(entries: Mapping[str, object]) -> dict[int, dict[str, int]]:
    """Return the place of each rank in the parallel layout, as far as the entries say it."""
    said = entries.get("layout")
    places = {}
    for rank, place in said.items() if isinstance(said, dict) else ():
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            places[int(rank)] = {str(name): int(index) for name, index in place.items()}
    return places


def void(entries: Mapping[str, object]) -> dict[int, list[tuple[int, int | None]]]:
    """Return by rank which steps the entries say to be void of it: the first and the last, None for no end."""
    said = entries.get("void")
    steps = {}
    for rank, ranges in said.items() if isinstance(said, dict) else ():
        with contextlib.suppress(TypeError, ValueError):
            steps[int(rank)] = [(int(first), None if last is None else int(last)) for first, last in ranges]
    return steps


def declared_tags(entries: Mapping[str, object]) -> dict[str, Tag]:
    """Return the tags that the entries describe, by name; what does not describe a tag is passed over."""
    described = entries.get("tags")
    tags = {}
    for name, meaning in described.items() if isinstance(described, dict) else ():
        with contextlib.suppress(TypeError, ValueError, KeyError):
            tags[name] = Tag(name, TagKind(meaning["kind"]), meaning["unit"], meaning["description"])
    return tags


def tell_merged(path: Path, *, last_step: int) -> None:
    """Say in the run's file that the merged curves hold all that the rank files do. Raises OSError."""
    entries = {name: entry for name, entry in read(path).items() if name not in {"incomplete", "because"}}
    ranks = entries.get("ranks")
    if isinstance(ranks, dict) and ranks.get("live"):
        # Nobody was there to see how they ended.
        entries["ranks"] = {**ranks, "live": [], "lost": [*ranks.get("lost", []), *ranks["live"]]}
    publish(path, json.dumps({**entries, "merged_from": "files", "last_step": last_step}, indent=2))


def publish(path: Path, content: str) -> None:
    """Write a file that others read: whole, or not at all."""
    replace_whole(path, f"{content}\n".encode())
