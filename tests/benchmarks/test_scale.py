"""One aggregator gives the same figures for many ranks directly and behind relays, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import TAGS, Way, events, ranks_values, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def compare(folder, sockets, *, ranks, relays, steps):
    directly = run(Way(ranks, 0, steps), folder, sockets)
    relayed = run(Way(ranks, relays, steps), folder, sockets)
    expected = events(directly.run_dir)
    assert {len(found) for found in expected.values()} == {steps}
    assert events(relayed.run_dir) == expected
    return directly.run_dir


def test_figures_of_1000_ranks_are_numpys_and_the_same_behind_10_relays(tmp_path, socket_folder):
    run_dir = compare(tmp_path, socket_folder, ranks=1000, relays=10, steps=20)
    values = np.stack([ranks_values(1000, step) for step in range(1, 21)])
    for name, over in {"mean": np.mean, "min": np.min, "max": np.max, "std": np.std}.items():
        accumulator = EventAccumulator(str(run_dir / "merged" / name))
        accumulator.Reload()
        for i, tag in enumerate(TAGS):
            found = [point.value for point in accumulator.Scalars(tag.name)]
            assert np.allclose(found, over(values[:, :, i], axis=1), rtol=1e-6), (name, tag)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_figures_of_10000_ranks_are_the_same_behind_100_relays(tmp_path, socket_folder):
    compare(tmp_path, socket_folder, ranks=10_000, relays=100, steps=5)
