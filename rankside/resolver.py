"""Turns what was logged for a step into numbers; what cannot be one is left out and told, the rest goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankside.tags import is_tag_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankside.entries import Values

    Value = float | Callable[[], float]


class Resolver:
    """Calls what was handed over as a callable, and checks the names of tags.

    fail: told what failed, and how.
    """

    def __init__(self, fail: Callable[[str, BaseException], None]) -> None:
        self._fail = fail
        self._accepted: set[str] = set()  # names of tags that were found good

    def numbers(self, entry: Values) -> dict[str, float]:
        """Return the values of an entry by tag."""
        numbers: dict[str, float] = {}
        self._add(numbers, entry.values)
        for fetch in entry.deferred:
            try:
                self._add(numbers, fetch())
            except Exception as error:  # noqa: BLE001 (a caller's callable may raise anything)
                self._fail("deferred values", error)
        return numbers

    def _add(self, numbers: dict[str, float], values: Mapping[str, Value]) -> None:
        for name, value in values.items():
            try:
                if name not in self._accepted:
                    self._accept(name)
                numbers[name] = _number(value)
            except Exception as error:  # noqa: BLE001 (a caller's callable may raise anything)
                self._fail(f"value of {name!r}", error)

    def _accept(self, name: str) -> None:
        if not is_tag_name(name):
            raise ValueError("the name of a tag must be a short printable text")
        self._accepted.add(name)


def _number(value: Value) -> float:
    if type(value) is float:
        return value
    number = value() if callable(value) else value
    return float(number.item() if isinstance(number, np.ndarray) else number)
