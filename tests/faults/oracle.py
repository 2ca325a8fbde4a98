"""What the merged curves must be: computed with numpy from what TensorBoard's reader shows of the rank files."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from tensorboard.backend.event_processing import tag_types
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

STATISTICS = ("mean", "min", "max", "std")
OWN_TAGS = {"gradient-noise-scale"}  # the run's own numbers, which are no statistics of the ranks'
HONEST = ("mean", "min", "max", "ranks_seen", "nonfinite", "rank_of_min", "rank_of_max")


def open_run(folder):
    """Return TensorBoard's own reader of a run folder, which keeps every point."""
    return EventAccumulator(str(folder), size_guidance={tag_types.SCALARS: 0, tag_types.TENSORS: 0})


def scalars(reader):
    """Return {tag: [(step, value), ...]} as TensorBoard shows it, in its order."""
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()[tag_types.SCALARS]}


def expected(run_dir):
    """Return {run: {tag: {step: value}}} for the runs below `merged`."""
    said = defaultdict(dict)  # (tag, step): {rank: (count, nonfinite, mean, M2, min, max)}
    for folder in sorted(run_dir.glob("rank_*")):
        rank = int(re.fullmatch(r"rank_(\d+)", folder.name)[1])
        for (tag, step), row in _rows(folder).items():
            said[tag, step][rank] = row
    runs = {name: defaultdict(dict) for name in ("", *STATISTICS)}
    for (tag, step), rows in said.items():
        merged = _merge(rows)
        for name in STATISTICS:
            runs[name][tag][step] = merged[name]
        for name in HONEST:
            runs[""][f"{tag}/{name}"][step] = merged[name]
    return runs


def compare(run_dir, right, runs=None):
    """Assert that each run below `merged` shows every expected step once, with the expected value.

    right: what `expected` returned. runs: readers by the run's name; fresh ones unless given.
    """
    for name, tags in right.items():
        reader = (runs or {}).get(name) or open_run(run_dir / "merged" / name)
        reader.Reload()
        shown = {tag: points for tag, points in scalars(reader).items() if tag not in OWN_TAGS}
        where = f"merged/{name}"
        assert set(shown) == set(tags), f"{where}: tags {sorted(set(shown) ^ set(tags))}"
        for tag, points in tags.items():
            steps = sorted(step for step, _ in shown[tag])
            doubled = sorted({step for step in steps if steps.count(step) > 1})
            assert not doubled, f"{where}, {tag}: shown more than once: {doubled}"
            missing, surplus = set(points) - set(steps), set(steps) - set(points)
            assert not missing, f"{where}, {tag}: missing {sorted(missing)}"
            assert not surplus, f"{where}, {tag}: surplus {sorted(surplus)}"
            found = np.array([value for _, value in sorted(shown[tag])])
            right = np.array([points[step] for step in steps])
            close = np.isclose(found, right, rtol=1e-6, atol=2e-7, equal_nan=True)
            wrong = np.flatnonzero(~close)
            some = {steps[i]: (found[i], right[i]) for i in wrong[:5]}
            assert not wrong.size, (
                f"{where}, {tag}: {wrong.size} wrong, such as step: (shown, expected) {some}"
            )


def _rows(folder):
    """Return {(tag, step): (count, nonfinite, mean, M2, min, max)} of one rank; of two points the last one wins.

    TensorBoard's reader drops void scalars at a session start, but no tensors: a window counts where the scalar that
    was written with it is shown.
    """
    reader = open_run(folder)
    reader.Reload()
    windows = {}
    for tag in reader.Tags()[tag_types.TENSORS]:
        if tag != "crossrank/window":
            continue
        names = reader.SummaryMetadata(tag).plugin_data.content.decode().split("\n")
        for event in reader.Tensors(tag):
            columns = tensor_util.make_ndarray(event.tensor_proto)
            for i, name in enumerate(names):
                windows[name, event.step, event.wall_time] = tuple(columns[:6, i])
    parts = {f"{name}/{part}" for name, *_ in windows for part in ("min", "max")}
    return {
        (tag, event.step): windows.get((tag, event.step, event.wall_time)) or _single(event.value)
        for tag in set(reader.Tags()[tag_types.SCALARS]) - parts
        for event in reader.Scalars(tag)
    }


def _single(value):
    if np.isfinite(value):
        return 1, 0, value, 0.0, value, value
    return 0, 1, np.nan, np.nan, np.nan, np.nan


def _merge(rows):
    ranks = np.array(sorted(rows))
    count, nonfinite, mean, squares, lowest, highest = np.array([rows[rank] for rank in ranks], float).T
    seen = {"ranks_seen": len(ranks), "nonfinite": nonfinite.sum()}
    some = count > 0
    if not some.any():
        nan = dict.fromkeys(STATISTICS, np.nan)
        return {**nan, **seen, "rank_of_min": -1, "rank_of_max": -1}
    count, mean, squares, lowest, highest = (a[some] for a in (count, mean, squares, lowest, highest))
    center = np.average(mean, weights=count)
    return {
        **seen,
        "mean": center,
        "min": lowest.min(),
        "max": highest.max(),
        "std": np.sqrt((squares.sum() + (count * (mean - center) ** 2).sum()) / count.sum()),
        "rank_of_min": ranks[some][lowest.argmin()],
        "rank_of_max": ranks[some][highest.argmax()],
    }
