"""Faults that a single step proves, and ranks that die."""

from __future__ import annotations

import numpy as np

from aggregator.detect import DetectionSettings
from aggregator.detect.silence import IN_THE_STEP, SignsOfLife, SilenceDetector
from tests.benchmarks.detection.table import Row
from tests.benchmarks.detection.world import World, count


def hard(fault: str, noise: str, size: int, runs: int, seed: int) -> Row:
    """Faults that a single step proves: a value that is not finite, or that differs from the replicas'."""
    row = Row(fault, size, noise, 60, 1)
    for number in range(runs):
        world = World(noise, size, size, (seed, 6, number))
        bad = int(world.rng.integers(size))
        onset = int(world.rng.integers(2, 60))
        fork_seed = onset

        def values(w=world, bad=bad, onset=onset) -> dict[str, np.ndarray]:
            loss = w.own()
            rate = np.full(size, 0.1)
            digest = np.full(size, float(w.rng.integers(2**52)))
            if w.step >= onset:
                if fault == "nonfinite":
                    loss[bad] = np.nan if onset % 2 else np.inf
                elif fault == "mismatch: rate":
                    rate[bad] = 0.1 * (1 + 1e-4)
                else:
                    digest[bad] += 1
            return {"loss": loss, "learning-rate": rate, "param-fingerprint": digest}

        for _ in range(fork_seed - 1):
            row.false += len(world.observe(values()))
            row.rank_steps += size
        count(row, world, np.array([bad]), values, kind=fault.split(":", maxsplit=1)[0])
    return row


def dead(size: int, runs: int, seed: int) -> Row:
    """A rank that dies without a goodbye: signs of life once a second, steps of one second."""
    row = Row("dead rank", size, "-", 60, 1)
    rng = np.random.default_rng([seed, 7, size])
    for _ in range(runs):
        detector = SilenceDetector(DetectionSettings())
        bad, death = int(rng.integers(size)), int(rng.integers(5, 60))
        told = False
        for now in range(death + 60):
            done = min(now, death)
            silent = rng.uniform(0, 2, size=size)
            waits = np.full(size, float(max(0, now - death)))
            if now > death:
                silent[bad] = now - death
            signs = SignsOfLife(
                np.full(size, done),
                [IN_THE_STEP] * size,
                waits,
                silent,
                np.zeros(size, bool),
                np.zeros(size, bool),
                np.ones(size, bool),
                np.full(size, np.nan),
                [""] * size,
            )
            for finding in detector.observe(signs):
                if now <= death:
                    row.false += 1
                elif not told and finding.status == "open":
                    told = True
                    row.right += finding.kind == "silent" and finding.ranks == (bad,)
                    row.wrong += finding.ranks != (bad,)
                    row.delays.append(finding.step - death)
        row.runs += 1
        row.rank_steps += size * death
    return row
