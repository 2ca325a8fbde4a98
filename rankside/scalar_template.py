"""The bytes of the scalars of one event, for one list of tags, in which only the numbers change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankside.summary import field, scalar_value
from rankside.tags import Tag

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence


class ScalarTemplate:
    """Encodes a float32 for each of the tags into a summary's values, without their metadata.

    described_in: for the writer's use, the number of the file that holds the descriptions of all these tags.
    """

    def __init__(self, tags: Sequence[Tag]) -> None:
        self._tags = tuple(tags)
        values = [field(1, scalar_value(tag.name, 0.0)) for tag in tags]
        self._bytes = np.frombuffer(bytearray(b"".join(values)), np.uint8)
        ends = np.cumsum([len(value) for value in values], dtype=np.intp)
        self._positions = (ends[:, None] + np.arange(-4, 0)).ravel()
        self._window_tags: tuple[Tag, ...] | None = None
        self.described_in = -1

    def fill(self, numbers: array[float]) -> bytes:
        """Return the serialized values; numbers: T, of type code f."""
        self._bytes[self._positions] = np.frombuffer(numbers, np.uint8)
        return self._bytes.tobytes()

    @property
    def window_tags(self) -> tuple[Tag, ...]:
        """Return the tags, then `<tag>/min` of each, then `<tag>/max` of each."""
        if self._window_tags is None:
            extremes = (
                Tag(f"{tag.name}/{name}", tag.kind, tag.unit, f"{word} value of {tag.name} in the window")
                for name, word in (("min", "smallest"), ("max", "largest"))
                for tag in self._tags
            )
            self._window_tags = (*self._tags, *extremes)
        return self._window_tags
