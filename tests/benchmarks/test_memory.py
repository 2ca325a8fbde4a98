"""A rank's memory does not grow with the steps that it records."""

from __future__ import annotations

import memory
import pytest

GROWTH_MIB = 1.5  # ten thousand more steps of twelve values are 8 MB as blocks alone


@pytest.mark.real
@pytest.mark.parametrize("kind", ["files", "aggregator", "dead"])
def test_the_second_ten_thousand_steps_take_no_memory(kind):
    sizes = memory.measure(kind, steps=20_000, tags=12, buffer_bytes=1 << 20)
    assert len(sizes) == 10
    assert sizes[-1] - sizes[4] < GROWTH_MIB, sizes
