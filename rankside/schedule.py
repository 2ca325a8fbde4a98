"""Which steps end a reporting window; the same on all ranks, since it depends on the step alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from rankside.arguments import whole
from rankside.errors import ConfigError
from rankside.messages import STEP_LIMIT


class Schedule:
    """Reports every so many steps, with a length that may change from phase to phase.

    every: a number of steps, or a map from the first step of a phase to the number of steps in it, such as
    {0: 1, 1000: 10}: every step up to 999, then every tenth. Raises `ConfigError` for anything else.
    """

    def __init__(self, every: int | Mapping[int, int] = 1) -> None:
        given = every if isinstance(every, Mapping) else {0: every}
        try:
            phases = {
                whole("every", first, least=0, most=STEP_LIMIT): whole(
                    "every", length, least=1, most=STEP_LIMIT
                )
                for first, length in given.items()
            }
        except ConfigError as error:
            raise ConfigError(
                f"every={every!r}: a positive number of steps is expected, or a map from first step to it, "
                "such as {0: 1, 1000: 10}"
            ) from error
        if 0 not in phases:
            raise ConfigError(f"every={every!r}: the map needs an entry for step 0, the first phase")
        self.dense_until = -1  # every step up to this one ends a window
        self._firsts = sorted(phases)
        self._lengths = [phases[first] for first in self._firsts]
        self.every_step = self._lengths == [1]

    def ends_window(self, step: int, previous: int) -> bool:
        """Whether a window ends at `step`, where `previous` is the step recorded before it.

        Steps may jump, as with a dataset sink: a boundary between the two ends the window as well.
        """
        phase = bisect_right(self._firsts, step) - 1
        length = self._lengths[phase]
        return (
            step <= self.dense_until or previous < self._firsts[phase] or step // length > previous // length
        )
