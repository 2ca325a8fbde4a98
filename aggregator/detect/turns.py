"""Sees when ranks take turns in being slow: nearly every batch has one far above its peers, and never the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.detect.batches import BATCHES, Row
from aggregator.detect.reference import MAD_TO_SIGMA

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.settings import DetectionSettings


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
    leads = (
        (lead >= settings.turns_lead) & (lead * peers >= enough_ms) & (lead >= settings.slow_sigma * spread)
    )
    ranks, counts = np.unique(leaders[leads], return_counts=True)
    if (
        leads.sum() < settings.turns_share * BATCHES
        or len(ranks) < 3
        or counts.max() > settings.turns_largest_share * leads.sum()
    ):
        return None
    return Turns(ranks.tolist(), counts.tolist(), float(lead[leads].mean()))
