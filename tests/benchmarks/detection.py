"""How reliably, how early and how quietly the detectors name the bad rank.

    python tests/benchmarks/detection.py [--quick] [--seed 1]

Every world is generated from the seed, merged, and handed to the detectors step by step, as the pipeline does;
MindSpore is not needed. A world of 1024 ranks holds as many peer groups of the wanted size as fit, each with one
bad rank. Ranks have in common a falling curve and noise of half a standard deviation; on top each has its own:

    gaussian    independent, normal
    heavy       independent, Student's t with three degrees of freedom
    ar          AR(1) with coefficient 0.8
    unequal     normal, with a constant offset (normal, 3 sigma) and a size (0.8 to 1.25) of each rank's own

all with standard deviation 1 (`unequal`: the rank's own). Drifts are steps of 1 or 3 of the rank's own standard
deviations, up or down at random, after so many healthy steps as the table says. The healthy steps are also what
false findings are counted in. A delay of 0 is a finding at the first bad step itself.

`oracle` is what could be found of a shift in autocorrelated noise, at 1e-7 false findings per rank-step over both
signs, by who knows the noise and the baseline and has nothing to learn: the better of a moving sum as long as the
deadline (Guépié, Fillatre and Nikiforov, 2012) and of the likelihood ratio at the deadline. Peers add noise of
their own (1 / (n - 1) of the variance), which no test can take away as long as what the ranks have in common may
move freely.

Slow ranks need 10 % more time of their own. Times vary by 10 %, or by 4 % (log-normal): the host time of a real
training under msrun, with 9 ms of own work a step on two ranks, varied by 3.8 % and 4.0 % (1.48 times the median
absolute deviation) on a machine that others used as well, with an autocorrelation of 0.1.

--quick takes some ten seconds; without it, twelve minutes on one core that does nothing else.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect import DetectionSettings, PeerGroups, default_detectors
from aggregator.detect.moving import moving_threshold
from aggregator.detect.silence import IN_THE_STEP, SignsOfLife, SilenceDetector
from aggregator.merge import merge
from aggregator.step import StepMatrix
from rankside.tags import well_known
from rankside.window import single

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = 1024
NOISES = ("gaussian", "heavy", "ar", "unequal")
SIZES = (4, 8, 64, 1024)
COEFFICIENT = 0.8
PROMISE = 1e-7  # false findings per rank-step
SLOWER = 1.1


@dataclass
class Row:
    """One line of the table."""

    fault: str
    size: int
    noise: str
    healthy_steps: int
    deadline: int
    runs: int = 0
    found: int = 0
    right: int = 0
    wrong: int = 0
    delays: list = field(default_factory=list)
    false: int = 0
    rank_steps: int = 0
    oracle: float | None = None

    @property
    def recall(self) -> float:
        return self.right / self.runs if self.runs else float("nan")

    @property
    def right_rank(self) -> float:
        named = self.right + self.wrong
        return self.right / named if named else float("nan")

    @property
    def false_per_million(self) -> float:
        return 1e6 * self.false / self.rank_steps if self.rank_steps else float("nan")

    def __str__(self) -> str:
        delays = (
            f"{np.median(self.delays):6.0f} {np.percentile(self.delays, 99):6.0f}"
            if self.delays
            else " " * 13
        )
        recall = f"{100 * self.recall:6.2f} {100 * self.right_rank:6.2f}" if self.runs else " " * 13
        false = f"{self.false:4d} / {self.rank_steps / 1e6:6.2f} M = {self.false_per_million:.3f}"
        false = false if self.rank_steps else ""
        oracle = f"{100 * self.oracle:6.2f}" if self.oracle is not None else ""
        return (
            f"{self.fault:22s} {self.size:5d} {self.noise:9s} {self.healthy_steps:7d} {self.deadline:5d} "
            f"{self.runs:6d} {oracle:6s} {recall} {delays}   {false}"
        )


HEADER = (
    f"{'fault':22s} {'world':>5s} {'noise':9s} {'healthy':>7s} {'<= st':>5s} {'runs':>6s} "
    f"{'oracle':>6s} {'recall':>6s} {'right':>6s} {'median':>6s} {'p99':>6s}   false findings per million rank-steps"
)


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


def far_off(noise: str, size: int, seed: int) -> Row:
    """A rank that stands 200 standard deviations from its peers from the first step on."""
    world = World(noise, size, RANKS, (seed, 9))
    bad = np.arange(world.groups) * size + world.rng.integers(size, size=world.groups)
    shift = np.zeros(RANKS)
    shift[bad] = 200 * world.rng.choice([-1.0, 1.0], size=world.groups)
    row = Row("far off from step 1", size, noise, 0, DetectionSettings().offset_steps)
    count(row, world, bad, lambda: {"loss": world.own(shift)}, kind="outlier")
    return row


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


def benchmark(*, quick: bool, seed: int) -> Iterator[Row]:
    """Run everything, one row of the table after the other."""
    for size in (4, 64) if quick else SIZES:
        for noise in ("heavy", "ar") if quick else NOISES:
            runs = 64 if quick else 1024 if size < RANKS else 32
            yield from drifts(noise, size, 1000 if quick else 10_000, runs, seed)
    for size in (8,) if quick else SIZES[1:]:
        for noise in NOISES:
            yield far_off(noise, size, seed)
    for size in (8,) if quick else SIZES:
        yield from hard_and_global(size, seed, quick=quick)
    for size in (8,) if quick else SIZES:
        runs = 128 if quick else 512 if size < RANKS else 16
        for noise in ("gaussian",) if quick else NOISES:
            yield slow(noise, size, 500 if quick else 1000, runs, seed, spread=0.1)
        yield slow("ar", size, 1000, runs, seed, spread=0.04)


def hard_and_global(size: int, seed: int, *, quick: bool) -> Iterator[Row]:
    """The faults of one step, and those of all ranks."""
    runs = 10 if quick else 100 if size < RANKS else 20
    for noise in NOISES[:2] if quick else NOISES:
        for fault in ("nonfinite", "mismatch: rate", "mismatch: parameters"):
            yield hard(fault, noise, size, runs, seed)
    yield dead(size, runs, seed)
    for fault in ("loss jumps", "norms explode", "loss is NaN", "loss scale lost"):
        for noise in NOISES[:1] if quick else NOISES:
            yield everybody(fault, noise, size, 2 if quick else 5, seed)


def summary(rows: list[Row]) -> str:
    """Return false findings by noise over all healthy steps, and precision and recall over everything."""
    lines = []
    for noise in NOISES:
        healthy = [row for row in rows if row.fault == "healthy" and row.noise == noise]
        steps, false = sum(row.rank_steps for row in healthy), sum(row.false for row in healthy)
        lines.append(f"healthy, {noise:9s}: {false} false findings in {steps / 1e6:.1f} million rank-steps")
    right, wrong, runs = (sum(getattr(row, name) for row in rows) for name in ("right", "wrong", "runs"))
    false = sum(row.false for row in rows)
    lines.append(
        f"all faults: precision {right / (right + wrong + false):.4f}, recall {right / runs:.4f} of {runs} runs"
    )
    return "\n".join(lines)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a part of the table, in some ten seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    started = time.perf_counter()
    print(HEADER, flush=True)
    rows = []
    for row in benchmark(quick=options.quick, seed=options.seed):
        print(row, flush=True)
        rows.append(row)
    print(summary(rows))
    print(f"{time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
