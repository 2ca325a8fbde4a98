"""The run's tag table: one index for each tag name, whichever rank named it first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankside.tags import TagKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from rankside.tags import Tag

    Int64Array = npt.NDArray[np.int64]


class TagTable:
    """Grows only, so that an index stays true for the whole run.

    tags: the table. A tag that one rank declares and another does not is declared.
    """

    def __init__(self) -> None:
        self.tags: list[Tag] = []
        self._ids: dict[str, int] = {}
        self._interned: dict[bytes, Int64Array] = {}

    def add(self, tags: Iterable[Tag]) -> Int64Array:
        """Return the index of each tag, int64, adding those that are new."""
        return np.array([self._add(tag) for tag in tags], np.int64)

    def size_with(self, tags: Iterable[Tag]) -> int:
        """Return how many tags the table would have with these as well."""
        return len(self.tags) + len({tag.name for tag in tags} - self._ids.keys())

    def intern(self, ids: Int64Array) -> Int64Array:
        """Return the one array that stands for these ids, so that equal ones can be told by identity."""
        return self._interned.setdefault(ids.tobytes(), ids)

    def _add(self, tag: Tag) -> int:
        index = self._ids.setdefault(tag.name, len(self.tags))
        if index == len(self.tags):
            self.tags.append(tag)
        elif self.tags[index].kind is TagKind.UNKNOWN:
            self.tags[index] = tag
        return index
