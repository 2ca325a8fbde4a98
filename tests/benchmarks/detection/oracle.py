"""What could be found of a shift in autocorrelated noise by who knows the noise and has nothing to learn."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from aggregator.detect.moving import moving_threshold
from tests.benchmarks.detection.world import COEFFICIENT

PROMISE = 1e-7  # false findings per rank-step


def oracle(size: int, sigmas: float, deadline: int, seed: int, runs: int = 4000) -> float:
    """Return the share of shifts in AR(1) noise that a test finds which knows all but the onset and the sign."""
    rng = np.random.default_rng([seed, 3, size])
    unit = sigmas * np.sqrt(1 - 1 / size) / np.sqrt(1 - COEFFICIENT**2)
    after = np.full(deadline, unit * (1 - COEFFICIENT))
    after[0] = unit
    before = rng.normal(size=(runs, deadline))
    sums = np.cumsum(np.hstack([before, after + rng.normal(size=(runs, deadline))]), axis=1)
    moving = (sums[:, deadline:] - sums[:, :-deadline]) / np.sqrt(deadline)
    summed = (moving.max(axis=1) >= moving_threshold(1 / deadline, PROMISE / 2)).mean()
    normal = NormalDist()
    matched = normal.cdf(np.linalg.norm(after) - normal.inv_cdf(1 - PROMISE / 2))
    return float(max(summed, matched))
