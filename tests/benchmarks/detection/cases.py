"""All that is run: which faults in which worlds, whole or as a quick sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks.detection.drifts import drifts, far_off
from tests.benchmarks.detection.everybody import everybody
from tests.benchmarks.detection.hard import dead, hard
from tests.benchmarks.detection.slowness import slow
from tests.benchmarks.detection.world import NOISES, RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.detection.table import Row


SIZES = (4, 8, 64, 1024)


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
