"""Ranks whose own time grows."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.detection.oracle import oracle
from tests.benchmarks.detection.table import Row
from tests.benchmarks.detection.world import NOISES, RANKS, World, count

SLOWER = 1.1


def slow(noise: str, size: int, healthy_steps: int, runs: int, seed: int, *, spread: float) -> Row:
    """A rank whose own time grows by 10 %, for good; spread: by which times vary."""
    world = World(noise, size, RANKS, (seed, 4))
    factor = np.ones(RANKS)

    def times(w: World) -> dict[str, np.ndarray]:
        w.step += 1
        return {"data-time": 20 * factor * np.exp(spread * w.noise.next())}

    row = Row(
        f"slow, times vary {100 * spread:g} %",
        size,
        noise,
        healthy_steps,
        200,
        rank_steps=RANKS * healthy_steps,
        oracle=oracle(size, np.log(SLOWER) / spread, 200, seed) if noise == "ar" else None,
    )
    for _ in range(healthy_steps):
        row.false += len(world.observe(times(world)))
    for number in range(max(1, round(runs / world.groups))):
        fork = world.fork((seed, 5, number, size, NOISES.index(noise)))
        bad = np.arange(fork.groups) * size + fork.rng.integers(size, size=fork.groups)
        factor[:] = 1
        factor[bad] = SLOWER
        count(row, fork, bad, lambda w=fork: times(w), kind="slow")
    return row
