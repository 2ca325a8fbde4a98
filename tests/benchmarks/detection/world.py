"""Ranks that train in peer groups of one size: their noise, and the detectors that see them step by step."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect import DetectionSettings, PeerGroups, default_detectors
from aggregator.merge import merge
from aggregator.step import StepMatrix
from rankside.tags import well_known
from rankside.window import single

if TYPE_CHECKING:
    from tests.benchmarks.detection.table import Row


RANKS = 1024
NOISES = ("gaussian", "heavy", "ar", "unequal")
COEFFICIENT = 0.8  # of the autocorrelated noise


class Noise:
    """Each rank's own noise, standard deviation 1, one step after the other."""

    def __init__(self, kind: str, ranks: int, rng: np.random.Generator) -> None:
        self.kind = kind
        self.rng = rng
        self.last = rng.normal(size=ranks)
        unequal = kind == "unequal"
        self.offset = 3 * rng.normal(size=ranks) if unequal else np.zeros(ranks)
        self.size = np.exp(rng.uniform(np.log(0.8), np.log(1.25), size=ranks)) if unequal else np.ones(ranks)

    def next(self) -> np.ndarray:
        if self.kind == "heavy":
            return self.rng.standard_t(3, size=len(self.last)) / np.sqrt(3)
        fresh = self.rng.normal(size=len(self.last))
        if self.kind != "ar":
            return fresh
        self.last = COEFFICIENT * self.last + np.sqrt(1 - COEFFICIENT**2) * fresh
        return self.last


class World:
    """Peer groups of one size, seen by one set of detectors."""

    def __init__(self, noise: str, size: int, ranks: int, seed: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng([*seed, size, NOISES.index(noise)])
        self.size, self.ranks, self.step = size, ranks, 0
        self.groups = ranks // size
        self.noise = Noise(noise, ranks, self.rng)
        places = {rank: {"pp": rank // size, "dp": rank % size} for rank in range(ranks)}
        self.detectors = default_detectors(DetectionSettings(), PeerGroups.from_coordinates(places))

    def fork(self, seed: tuple[int, ...]) -> World:
        """Return the same world with another future."""
        other = copy.deepcopy(self)
        other.rng = other.noise.rng = np.random.default_rng(seed)
        return other

    def own(self, shift=0.0) -> np.ndarray:
        """Return the ranks' values of the next step, in units of their noise; advances the step."""
        self.step += 1
        common = np.repeat(0.5 * self.rng.normal(size=self.groups), self.size)
        return (
            5
            + 3 * np.exp(-self.step / 2000)
            + common
            + self.noise.offset
            + self.noise.size * (self.noise.next() + shift)
        )

    def observe(self, values: dict[str, np.ndarray]):
        """Hand one step to the detectors; return the findings that open."""
        tags = [well_known(name) for name in values]
        columns = single(np.stack(list(values.values()), axis=1))
        matrix = StepMatrix(self.step, tags, np.arange(len(tags)), columns)
        return [each for each in self.detectors.observe(matrix, merge(matrix)) if each.status == "open"]


def count(row: Row, world: World, bad: np.ndarray, values, *, kind: str) -> None:
    """Run the world to the deadline and enter in the row what was found of each group's bad rank."""
    first_bad = world.step + 1
    told: dict[int, bool] = {}
    for _ in range(row.deadline + 1):
        for finding in world.observe(values()):
            group = finding.ranks[0] // world.size if finding.ranks else -1
            if group >= 0 and group not in told:
                told[group] = finding.ranks == (bad[group],) and finding.kind == kind
                row.delays.append(finding.step - first_bad)
    row.runs += world.groups
    row.found += len(told)
    row.right += sum(told.values())
    row.wrong += len(told) - sum(told.values())
