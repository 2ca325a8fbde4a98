"""Sees when ranks take turns in being slow: nearly every batch has one far above its peers, and never the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.detect.batches import BATCHES, Row
from aggregator.detect.reference import MAD_TO_SIGMA

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.settings import DetectionSettings

# A rank rotates in when it leads a batch by this much of its peers' time.
LEAD_FRACTION = 0.3
_LED_BATCHES = 0.8
_LARGEST_PART = 0.6


class Turns(NamedTuple):
    """Who takes turns, ascending, how many batches each of them led, and by how much, as a fraction of the peers'."""

    ranks: list[int]
    counts: list[int]
    lead: float


def find_turns(kept: npt.NDArray[np.float64], enough_ms: float, settings: DetectionSettings) -> Turns | None:
    """Return who takes turns in the batches of one tag, or None.

    kept: shape (rows, B, W), as `Batches.kept` gives them. enough_ms: what a lead has to be at least.
    """
    excess = kept[Row.LEAD]
    leaders = np.argmax(excess, axis=1)
    lead = np.take_along_axis(excess, leaders[:, None], axis=1)[:, 0]
    spread = MAD_TO_SIGMA * np.median(np.abs(excess - np.median(excess)))
    peers = np.take_along_axis(kept[Row.PEERS], leaders[:, None], axis=1)[:, 0]
    leads = (lead >= LEAD_FRACTION) & (lead * peers >= enough_ms) & (lead >= settings.slow_sigma * spread)
    ranks, counts = np.unique(leaders[leads], return_counts=True)
    if leads.sum() < _LED_BATCHES * BATCHES or len(ranks) < 3 or counts.max() > _LARGEST_PART * leads.sum():
        return None
    return Turns(ranks.tolist(), counts.tolist(), float(lead[leads].mean()))
