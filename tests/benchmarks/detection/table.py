"""The table that the benchmark prints: a row a fault, world size and noise, and what all rows come to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.benchmarks.detection.world import NOISES


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
