"""Faults that hit all ranks at once, for which nobody may be named."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.detection.table import Row
from tests.benchmarks.detection.world import World


def everybody(fault: str, noise: str, size: int, runs: int, seed: int) -> Row:
    """Faults that hit all ranks: right is a global finding, and no rank named."""
    row = Row(f"global: {fault}", size, noise, 300, 100)
    for number in range(runs):
        world = World(noise, size, size, (seed, 8, number))

        def values(w=world) -> dict[str, np.ndarray]:
            loss = w.own()
            norm = np.exp(0.2 * w.noise.next())
            reduced = np.full(size, 0.5 * np.exp(0.1 * w.rng.normal()))
            scale = np.full(size, 65536.0)
            if w.step > 300:
                if fault == "loss jumps":
                    loss += 20
                elif fault == "norms explode":
                    norm, reduced = norm * 1000, reduced * 1000
                elif fault == "loss is NaN":
                    loss[:] = np.nan
                else:
                    scale[:] = max(1.0, 65536.0 / 2 ** (w.step - 300))
            return {"loss": loss, "local-grad-norm": norm, "grad-norm": reduced, "loss-scale": scale}

        for _ in range(300):
            row.false += len(world.observe(values()))
        row.rank_steps += 300 * size
        found = [finding for _ in range(101) for finding in world.observe(values())]
        row.runs += 1
        row.right += bool(found) and not any(finding.ranks for finding in found)
        row.wrong += any(finding.ranks for finding in found)
        row.delays += [found[0].step - 301] if found else []
    return row
