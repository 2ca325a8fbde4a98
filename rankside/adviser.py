"""What a rank makes of the aggregator's advice: denser sampling, its threads' stacks, a line about the others."""

from __future__ import annotations

import faulthandler
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankside.messages import Advice, Place
    from rankside.schedule import Schedule


STACKS_PATTERN = "stacks-*.txt"  # files in the rank's folder


class Adviser:
    """Follows the advice as it comes.

    folder: the rank's own, where stacks are written. stop: why training should stop in an orderly way, or "".
    standing: where this rank is against the others, in words, or "".
    """

    def __init__(self, rank: int, schedule: Schedule) -> None:
        self.folder = Path()
        self.stop = ""
        self.standing = ""
        self._rank = rank
        self._schedule = schedule
        self._stacks = 0
        self._followed: Advice | None = None

    @property
    def dense_until(self) -> int:
        """Up to which step every step is to be reported; -1 as long as that was not asked for."""
        return self._schedule.dense_until

    def follow(self, advice: Advice | None) -> None:
        """Do what is new in the advice. Raises OSError where the stacks cannot be written."""
        if advice is None or advice is self._followed:
            return
        self._followed = advice
        self._schedule.dense_until = max(self._schedule.dense_until, advice.dense_until)
        self.stop = advice.stop
        if advice.places:
            told = "; ".join(self._tell(place) for place in advice.places)
            self.standing = f"all ranks at step {advice.step}: {told}"
        if advice.stacks > self._stacks:
            self._stacks = advice.stacks
            asked = f"{time.strftime('%Y%m%d-%H%M%S')}-{advice.stacks}"
            path = self.folder / STACKS_PATTERN.replace("*", asked)
            with path.open("w", encoding="utf-8") as file:
                faulthandler.dump_traceback(file, all_threads=True)

    def _tell(self, place: Place) -> str:
        if place.minimum == place.maximum:
            return f"{place.tag} {place.mean:.4g} everywhere"
        lowest, highest = (
            "this rank" if rank == self._rank else f"rank {rank}"
            for rank in (place.rank_of_min, place.rank_of_max)
        )
        return f"{place.tag} {place.mean:.4g} ({place.minimum:.4g} {lowest}, {place.maximum:.4g} {highest})"
