"""Every threshold of the detectors, with its default, its accepted range and its meaning.

The defaults need no change: they hold the promises of the detection benchmark. The command line sets them as
`--detect name=value`; docs/detection.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def _threshold(default: float, low: float, high: float, unit: str, meaning: str) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionSettings:
    """The thresholds. What each means stands in its field's metadata, which the command line prints."""

    # Of several kinds.
    chronic_steps: int = _threshold(100, 2, 1_000_000, "steps", "a fault that lasts this long is chronic")
    rotating_steps: int = _threshold(
        1000,
        10,
        10_000_000,
        "steps",
        "a fault of one kind on three ranks in turn within this time is rotating",
    )
    quiet_steps: int = _threshold(
        20, 1, 1_000_000, "steps", "a fault that has not shown for this long is over"
    )
    back_fraction: float = _threshold(
        0.35, 0.0, 1.0, "", "an outlier is back when it is no farther off than this part of what it was"
    )

    # Outliers: ranks that part from their peers.
    warmup_steps: int = _threshold(
        50,
        10,
        1_000_000,
        "steps",
        "for which a rank must have reported a tag before it can be called an outlier",
    )
    outlier_false_alarms: float = _threshold(
        7e-8, 1e-15, 1e-2, "", "false outliers allowed per rank, tag and step of healthy training"
    )
    outlier_widening: float = _threshold(
        30.0,
        0.0,
        10_000.0,
        "steps",
        "thresholds are raised by the part that this is of the steps learnt from",
    )
    outlier_clip: float = _threshold(
        4.0,
        2.0,
        20.0,
        "standard deviations",
        "of the rank's own noise: a single step counts at most this much",
    )
    outlier_floor: float = _threshold(
        1e-3, 0.0, 1.0, "", "smallest standard deviation that is believed, as a fraction of the value's size"
    )
    baseline_steps: int = _threshold(
        20_000, 100, 10_000_000, "steps", "memory of a rank's baseline and noise: what is older fades out"
    )

    # Outliers: ranks that are far off from the first step on.
    offset_steps: int = _threshold(
        50, 10, 64, "steps", "first ones of a training, which tell if a rank is far off from the beginning"
    )
    offset_spreads: float = _threshold(
        10.0, 1.0, 1e6, "spreads", "by which a rank must then stand beyond all its peers"
    )
    offset_peers: int = _threshold(
        4, 2, 1_000_000, "ranks", "peers without which an offset is taken for a rank's nature"
    )

    # Mismatches.
    mismatch_tolerance: float = _threshold(
        1e-6,
        0.0,
        1.0,
        "",
        "relative difference that a replicated number may have; fingerprints may have none",
    )
    mismatch_quiet_steps: int = _threshold(
        200, 1, 1_000_000, "steps", "without a difference, after which a mismatch is over"
    )
    replicated_changes: int = _threshold(
        30,
        2,
        1_000_000,
        "changes",
        "in which an undeclared tag must have been equal on all ranks to be replicated",
    )

    # Slow ranks.
    slow_fraction: float = _threshold(
        0.05, 0.0, 100.0, "", "a rank is slow if its own time is above its peers' by this fraction of theirs"
    )
    slow_floor_ms: float = _threshold(1.0, 0.0, 1e6, "ms", "and by this much")
    slow_iteration_fraction: float = _threshold(
        0.01, 0.0, 1.0, "", "and by this fraction of the time of a step"
    )
    slow_sigma: float = _threshold(
        5.0,
        1.0,
        100.0,
        "standard errors",
        "and by this much; more of them while the noise is known from little",
    )
    slow_steps: int = _threshold(
        96, 8, 200, "steps", "for which a rank must have been compared before it can be called slow"
    )
    turns_lead: float = _threshold(
        0.3, 0.0, 100.0, "", "ranks take turns if there is one above its peers by this fraction of their time"
    )
    turns_share: float = _threshold(0.8, 0.0, 1.0, "", "in this part of the time")
    turns_largest_share: float = _threshold(
        0.6, 0.0, 1.0, "", "and no rank has had more of these turns than this part"
    )

    # Silent and stalled ranks.
    silent_seconds: float = _threshold(
        15.0, 0.1, 1e6, "s", "a rank without a sign of life for this long is gone"
    )
    failed_seconds: float = _threshold(
        3.0,
        0.0,
        1e6,
        "s",
        "a rank that failed is named after this time, unless all have failed alike by then",
    )
    apart_seconds: float = _threshold(
        0.05, 0.0, 1e6, "s", "a rank ended before the others if it did by this much"
    )
    following_seconds: float = _threshold(
        10.0, 0.0, 1e6, "s", "ranks that end within this time after it are taken to have followed"
    )
    stalled_seconds: float = _threshold(
        30.0, 0.1, 1e6, "s", "ranks that have waited this long for another one say that it is stalled"
    )
    first_step_seconds: float = _threshold(
        1800.0, 0.1, 1e6, "s", "the same before the first step, which compiles the model"
    )

    # What hits all ranks.
    global_hold_steps: int = _threshold(
        20, 0, 100_000, "steps", "for which a global finding waits for a single rank that explains it"
    )
    spike_sigma: float = _threshold(
        10.0, 2.0, 1e3, "standard deviations", "a loss this far above its recent median is a spike"
    )
    loss_move: float = _threshold(
        0.05,
        0.0,
        1.0,
        "",
        "a loss that spikes, rises or swings does so by this fraction of its size at least",
    )
    rise_sigma: float = _threshold(
        3.0, 0.0, 1e3, "standard deviations", "a loss that rises does so by this much at least"
    )
    alternation: float = _threshold(
        0.8,
        0.0,
        1.0,
        "",
        "a loss whose steps are correlated with the next ones by less than minus this oscillates",
    )
    explode_factor: float = _threshold(
        100.0, 2.0, 1e12, "", "a gradient norm this many times its recent median has exploded"
    )
    vanish_factor: float = _threshold(
        1e-4, 0.0, 0.5, "", "a gradient norm below this part of its usual size has vanished"
    )
    collapse_factor: float = _threshold(
        1024.0, 2.0, 1e300, "", "a loss scale that is this many times smaller than of late has collapsed"
    )
    pinned_steps: int = _threshold(
        20, 2, 64, "steps", "a loss scale that stays at 1 or less for this long is pinned"
    )
    fresh_step: int = _threshold(
        100, 0, 1_000_000, "", "a training that begins later than at this step may be converged already"
    )
    flat_steps: int = _threshold(
        1000, 50, 10_000_000, "steps", "a loss that has not fallen after this long does not learn"
    )
    still_steps: int = _threshold(
        200, 10, 1_000_000, "steps", "weights and layer gradients that do not move for this long are stuck"
    )
    zero_norm: float = _threshold(1e-12, 0.0, 1.0, "", "a layer's gradient norm up to this counts as none")

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
