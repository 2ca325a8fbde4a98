"""Hypothesis strategies: what ranks log, and how it arrives.

A run is a list, one entry a rank, of the samples of that rank in the order in which it logs them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

TAGS = ("loss", "learning-rate", "grad-norm", "eval/accuracy", "own")


class Sample(NamedTuple):
    """One report: rank, step, and values by tag, all of them float32 numbers or not finite."""

    rank: int
    step: int
    values: dict[str, float]


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
# Large and small, but such that float64 moments can be compared with a plain computation.
plain_numbers = st.one_of(
    st.floats(-1e6, 1e6, width=32), st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0])
)


@st.composite
def runs(draw, *, max_ranks=4, max_steps=8, tags=TAGS[:3]):
    """Runs in which ranks may skip steps and tags, each step and tag being reported once a rank."""
    ranks = draw(st.integers(1, max_ranks))
    run = []
    for rank in range(ranks):
        steps = sorted(draw(st.sets(st.integers(1, max_steps), min_size=1)))
        names = st.lists(st.sampled_from(tags), unique=True, min_size=1)
        run.append([Sample(rank, step, {n: draw(plain_numbers) for n in draw(names)}) for step in steps])
    return run


@st.composite
def arrivals(draw, sequences):
    """One sequence that interleaves these, each keeping its own order."""
    order = draw(st.permutations([i for i, items in enumerate(sequences) for _ in items]))
    sources = [iter(items) for items in sequences]
    return [next(sources[i]) for i in order]


@st.composite
def cuts(draw, items):
    """The items cut into consecutive, not empty parts."""
    parts, rest = [], list(items)
    while rest:
        n = draw(st.integers(1, len(rest)))
        parts.append(rest[:n])
        rest = rest[n:]
    return parts


@st.composite
def groupings(draw, items):
    """The items dealt out to groups, in any way."""
    keys = [draw(st.integers(0, len(items) - 1)) for _ in items]
    groups = {}
    for key, item in zip(keys, items, strict=True):
        groups.setdefault(key, []).append(item)
    return list(groups.values())


@st.composite
def duplications(draw, items):
    """The items in order, with copies of earlier ones strewn in."""
    result = []
    for i, item in enumerate(items):
        result.append(item)
        result += [items[draw(st.integers(0, i))] for _ in range(draw(st.integers(0, 2)))]
    return result


def logged(run):
    """Return {step: {tag: {rank: value}}}, the last value of a rank, step and tag being the one that counts."""
    table = {}
    for sample in (s for samples in run for s in samples):
        for tag, value in sample.values.items():
            table.setdefault(sample.step, {}).setdefault(tag, {})[sample.rank] = value
    return table


def across_ranks(values):
    """Return mean, std, min, max over the finite ones of these values, straight from their definitions."""
    finite = np.array([v for v in values if np.isfinite(v)], np.longdouble)
    if not len(finite):
        return (np.nan,) * 4
    mean = finite.sum() / len(finite)
    return (
        float(mean),
        float(np.sqrt(((finite - mean) ** 2).sum() / len(finite))),
        float(finite.min()),
        float(finite.max()),
    )
