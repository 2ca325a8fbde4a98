"""Ranks that part from their peers, and healthy ones: recall, delay and false findings of the outlier detectors."""

from __future__ import annotations

import numpy as np

from aggregator.detect import DetectionSettings
from tests.benchmarks.detection.oracle import oracle
from tests.benchmarks.detection.table import Row
from tests.benchmarks.detection.world import NOISES, RANKS, World, count


def drifts(noise: str, size: int, healthy_steps: int, runs: int, seed: int) -> list[Row]:
    """Healthy training, then forks of it with a drift in one rank of each group."""
    ranks = RANKS
    world = World(noise, size, ranks, (seed, 1))
    healthy = Row("healthy", size, noise, healthy_steps, 0, rank_steps=ranks * healthy_steps)
    for _ in range(healthy_steps):
        healthy.false += len(world.observe({"loss": world.own()}))
    rows = [healthy]
    slack = noise == "ar"
    for sigmas, deadline in ((1.0, 400 if slack else 100), (3.0, 60 if slack else 15)):
        row = Row(f"drift of {sigmas:g} sigma", size, noise, healthy_steps, deadline)
        if slack:
            row.oracle = oracle(size, sigmas, deadline, seed)
        for number in range(max(1, round(runs / world.groups))):
            fork = world.fork((seed, 2, number, int(sigmas), size, NOISES.index(noise)))
            bad = np.arange(fork.groups) * size + fork.rng.integers(size, size=fork.groups)
            shift = np.zeros(ranks)
            shift[bad] = sigmas * fork.rng.choice([-1.0, 1.0], size=fork.groups)
            count(row, fork, bad, lambda w=fork, s=shift: {"loss": w.own(s)}, kind="outlier")
        rows.append(row)
    return rows


def far_off(noise: str, size: int, seed: int) -> Row:
    """A rank that stands 200 standard deviations from its peers from the first step on."""
    world = World(noise, size, RANKS, (seed, 9))
    bad = np.arange(world.groups) * size + world.rng.integers(size, size=world.groups)
    shift = np.zeros(RANKS)
    shift[bad] = 200 * world.rng.choice([-1.0, 1.0], size=world.groups)
    row = Row("far off from step 1", size, noise, 0, DetectionSettings().offset_steps)
    count(row, world, bad, lambda: {"loss": world.own(shift)}, kind="outlier")
    return row
