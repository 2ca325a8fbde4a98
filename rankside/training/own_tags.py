"""Lets the numbers that a script logs by itself stand where the monitor has some of the same name."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankside.training.collector import Draft

_T = TypeVar("_T")
_LOGGER = logging.getLogger("crossrank")


class OwnTags:
    """The tags that the script has logged so far; the monitor's own numbers give way to them, which is said once."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._told: set[str] = set()

    def add(self, name: str) -> None:
        """Note that the script logs this tag."""
        self._names.add(name)

    def clear_way(self, draft: Draft) -> None:
        """Leave these tags out of the draft."""
        if self._names:
            draft.values = self._others(draft.values)
            draft.deferred = [partial(self._fetch_others, fetch) for fetch in draft.deferred]

    def _fetch_others(self, fetch: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        return self._others(fetch())

    def _others(self, values: Mapping[str, _T]) -> dict[str, _T]:
        for name in self._names & values.keys() - self._told:
            self._told.add(name)
            _LOGGER.warning(
                "%s is what the script logs under that name, not what the monitor would record", name
            )
        return {name: value for name, value in values.items() if name not in self._names}
