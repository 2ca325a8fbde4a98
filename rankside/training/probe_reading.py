"""Makes numbers, on the background thread, of what the gradient probe has noted on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rankside.training.tensor_value import fetch_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankside.training.gradient_norms import Norms
    from rankside.training.rate_table import RateTable
    from rankside.training.ring import Ring


class Runs(NamedTuple):
    """How often the probe had run before and after a step, or so many steps of a dataset sink: numbers or tensors."""

    before: Any
    after: Any
    steps: int

    def of_step(self, earlier: int) -> int | None:
        """Return the run of the step that many steps before the last one, None where there was none."""
        before, after = whole(self.before), whole(self.after)
        if after - before == self.steps:
            return after - earlier
        return None if earlier or after == before else after


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What has to be known to read the probe's rings.

    has_scale: whether the loss scale is noted. rates: by tag, the table that turns what was noted into the rate, or
    None where it is the rate.
    """

    ring: Ring
    layer_ring: Ring
    norms: Norms
    has_scale: bool
    rates: Mapping[str, RateTable | None]

    def numbers(self, runs: Runs, earlier: int = 0) -> Mapping[str, Any]:
        """Return what was noted so many steps before the last one, by tag; nothing where the probe did not run."""
        run = runs.of_step(earlier)
        if run is None:
            return {}
        local, total, scale, *noted = self.ring.row(run).tolist()
        values: dict[str, Any] = {**self.norms.of_all(local, total)}
        for (name, table), rate in zip(self.rates.items(), noted, strict=False):
            # Looked up apart: a count that the table lacks, since a callback has set it, costs the rate alone.
            values[name] = rate if table is None else partial(table.at, int(rate))
        if self.has_scale:
            values["loss-scale"] = scale
        return values

    def layers(self, runs: Runs) -> Mapping[str, float]:
        """Return every parameter's norm at the last step, by tag; nothing where the probe did not run."""
        run = runs.of_step(0)
        if run is None:
            return {}
        return self.norms.of_each(self.layer_ring.row(run).tolist())


def whole(number: Any) -> int:
    """Return a count, which may be a tensor of one element; waits for it."""
    return number if isinstance(number, int) else int(fetch_mean(number))
