"""Every threshold of the detectors, with its default, its accepted range and its meaning.

The defaults need no change: they hold the promises of the detection benchmark. The command line sets them as
`--detect name=value`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def _threshold(default: float, low: float, high: float, meaning: str) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionSettings:
    """The thresholds. What each means stands in its field's metadata, which the command line prints."""

    warmup_steps: int = _threshold(
        50, 10, 1_000_000, "steps a rank must have reported a tag before it can be called an outlier"
    )
    outlier_false_alarms: float = _threshold(
        5e-8, 1e-15, 1e-2, "false outliers allowed per rank, tag and step of healthy training"
    )
    outlier_widening: float = _threshold(
        30.0, 0.0, 10_000.0, "thresholds are raised by the part that this is of the steps learnt from"
    )
    outlier_clip: float = _threshold(
        4.0, 2.0, 20.0, "a single step counts at most this many of the rank's own standard deviations"
    )
    outlier_floor: float = _threshold(
        1e-3, 0.0, 1.0, "smallest standard deviation that is believed, as a fraction of the value's size"
    )
    offset_steps: int = _threshold(
        50, 10, 64, "first steps of a training that tell if a rank is far off from the beginning"
    )
    offset_spreads: float = _threshold(
        10.0,
        1.0,
        1e6,
        "it is if it stands beyond all its peers, at least four, by so many times their spread",
    )
    baseline_steps: int = _threshold(
        20_000, 100, 10_000_000, "memory of a rank's baseline and noise: older steps fade out"
    )
    chronic_steps: int = _threshold(100, 2, 1_000_000, "a fault that lasts this many steps is chronic")
    quiet_steps: int = _threshold(20, 1, 1_000_000, "a fault that has not shown for this many steps is over")

    rotating_steps: int = _threshold(
        1000, 10, 10_000_000, "a fault of one kind on three ranks in turn within so many steps is rotating"
    )
    mismatch_tolerance: float = _threshold(
        1e-6, 0.0, 1.0, "relative difference that a replicated number may have; fingerprints may have none"
    )
    mismatch_quiet_steps: int = _threshold(
        200, 1, 1_000_000, "steps without a difference after which a mismatch is over"
    )
    replicated_changes: int = _threshold(
        30, 2, 1_000_000, "an undeclared tag is replicated once it was equal on all ranks in so many changes"
    )
    slow_fraction: float = _threshold(
        0.05, 0.0, 100.0, "a rank is slow if its own time is above its peers' by this fraction of theirs"
    )
    slow_floor_ms: float = _threshold(1.0, 0.0, 1e6, "and by this many milliseconds")
    slow_iteration_fraction: float = _threshold(0.01, 0.0, 1.0, "and by this fraction of the time of a step")
    slow_sigma: float = _threshold(5.0, 1.0, 100.0, "and by this many standard errors")
    silent_seconds: float = _threshold(15.0, 0.1, 1e6, "a rank without a sign of life for this long is gone")
    stalled_seconds: float = _threshold(
        30.0, 0.1, 1e6, "ranks that have waited this long for another one say that it is stalled"
    )
    first_step_seconds: float = _threshold(
        1800.0, 0.1, 1e6, "the same before the first step, which compiles the model"
    )
    global_hold_steps: int = _threshold(
        20, 0, 100_000, "a global finding waits this long for a single rank that explains it"
    )
    spike_sigma: float = _threshold(
        10.0, 2.0, 1e3, "a loss this many standard deviations above its recent median is a spike"
    )
    explode_factor: float = _threshold(
        100.0, 2.0, 1e12, "a gradient norm this many times its recent median has exploded"
    )
    vanish_factor: float = _threshold(
        1e-4, 0.0, 0.5, "a gradient norm below this part of its usual size has vanished"
    )
    flat_steps: int = _threshold(
        1000, 50, 10_000_000, "a loss that has not fallen after this many steps does not learn"
    )
    still_steps: int = _threshold(
        200, 10, 1_000_000, "weights and layer gradients that do not move for this long are stuck"
    )

    @classmethod
    def from_pairs(cls, pairs: Iterable[str]) -> DetectionSettings:
        """Build settings from texts such as `outlier_clip=3`; what is not named keeps its default.

        Raises ValueError with the name and the accepted values for an unknown name, a value that is not a
        number of the right type, or one out of range.
        """
        known = {each.name: each for each in fields(cls)}
        chosen: dict[str, Any] = {}
        for pair in pairs:
            name, equals, text = pair.partition("=")
            name = name.strip()
            if name not in known or not equals:
                raise ValueError(
                    f"{pair!r}: expected name=value, with one of the names {', '.join(sorted(known))}"
                )
            chosen[name] = _number(name, text.strip(), known[name].type == "int", known[name].metadata)
        return cls(**chosen)


def _number(name: str, text: str, whole: bool, accepted: Any) -> float:
    kind = int if whole else float
    low, high = accepted["low"], accepted["high"]
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        what = "a whole number" if whole else "a number"
        raise ValueError(f"{name}={text}: it must be {what} from {low:g} to {high:g} ({accepted['meaning']})")
    return value
