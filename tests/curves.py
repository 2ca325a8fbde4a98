"""What TensorBoard's reader shows of runs, and what numpy makes of several ranks' curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STATISTICS = {"mean": np.nanmean, "min": np.nanmin, "max": np.nanmax, "std": np.nanstd}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return tag -> step -> value; a step stands there once."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    found = {}
    for tag in reader.Tags()["scalars"]:
        events = reader.Scalars(tag)
        found[tag] = {event.step: event.value for event in events}
        assert len(found[tag]) == len(events), f"{folder.name}: {tag} has a step twice"
    return found


def check_merged(
    merged: Path, rank_dirs: Sequence[Path], *, steps: int, own_tags: tuple[str, ...] = ()
) -> None:
    """Compare every merged point with numpy over the ranks' files; all have reported each of the steps.

    own_tags: beginnings of the names of those tags that each rank has for itself; all have the others.
    """
    ranks = [scalars(folder) for folder in rank_dirs]
    common = {tag for tag in ranks[0] if not tag.startswith(own_tags)}
    assert {"loss", "grad-norm", "local-grad-norm", "iteration-time"} <= common
    for rank in ranks:
        assert {tag for tag in rank if not tag.startswith(own_tags)} == common
        assert list(rank["loss"]) == list(range(1, steps + 1))
    for name, computation in STATISTICS.items():
        curves = scalars(merged / name)
        assert curves.keys() == set().union(*ranks)
        for tag, curve in curves.items():
            holders = [rank[tag] for rank in ranks if tag in rank]
            assert list(curve) == sorted(set().union(*holders)), f"{name} of {tag}"
            # Each rank digests at more steps from when it hears that the aggregator asks for it.
            assert tag == "param-fingerprint" or all(len(holder) == len(curve) for holder in holders), tag
            values = np.array([[holder.get(step, np.nan) for step in curve] for holder in holders])
            expected = computation(values, axis=0)
            # Values come from float32 files; what a spread loses to that is relative to the values.
            slack = 2e-6 * np.abs(expected) + 2e-7 * np.nanmax(np.abs(values), axis=0)
            assert np.all(np.abs(list(curve.values()) - expected) <= slack), f"{name} of {tag}"
