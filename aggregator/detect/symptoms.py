"""What is wrong with the training of all ranks at once, told from the curves of their medians.

Pure functions of the latest values of a metric, oldest first, all finite; each returns a sentence with
numbers, or None. They are deliberately far from what healthy training does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.detect.reference import MAD_TO_SIGMA
from aggregator.detect.words import number

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.settings import DetectionSettings

    Float64Array = npt.NDArray[np.float64]

_RECENT = 64
_BLOCK = 50
_SUSTAINED_STEPS = 8


class Symptom(NamedTuple):
    """One thing that is wrong: since how many values ago, how badly, and in words."""

    ago: int
    score: float
    words: str


def loss_spike(loss: Float64Array, settings: DetectionSettings) -> Symptom | None:
    """Return whether the last two values stand far above the recent median (median and MAD)."""
    if len(loss) < _RECENT:
        return None
    before = loss[-_RECENT:-2]
    middle = float(np.median(before))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(before - middle)))
    unit = max(sigma, settings.loss_move * abs(middle) / settings.spike_sigma, 1e-300)
    score = float(loss[-2:].min() - middle) / unit
    if score < settings.spike_sigma:
        return None
    return Symptom(1, score, f"the loss jumped from {number(middle)} to {number(float(loss[-1]))}")


def loss_rising(loss: Float64Array, settings: DetectionSettings) -> Symptom | None:
    """Return whether the medians of five blocks of 50 values rise, by more than the noise of a single value."""
    if len(loss) < 5 * _BLOCK:
        return None
    blocks = loss[-5 * _BLOCK :].reshape(5, _BLOCK)
    middles = np.median(blocks, axis=1)
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(blocks - middles[:, None])))
    rise = float(middles[-1] - middles[0])
    if not (np.diff(middles) > 0).all() or rise < max(
        settings.rise_sigma * sigma, settings.loss_move * abs(middles[0])
    ):
        return None
    words = f"the loss has risen from {number(float(middles[0]))} to {number(float(middles[-1]))}"
    return Symptom(5 * _BLOCK - 1, rise / max(sigma, 1e-300), words)


def loss_flat(first: Float64Array, latest: Float64Array) -> Symptom | None:
    """Return whether the loss has not fallen between the first and the latest values of a training."""
    start, now = float(np.median(first)), float(np.median(latest))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(latest - now)))
    if start - now > max(0.005 * abs(start), 0.1 * sigma):
        return None
    words = f"the loss has not fallen since training began ({number(start)} then, {number(now)} now)"
    return Symptom(0, (now - start) / max(sigma, 1e-300), words)


def loss_oscillates(loss: Float64Array, settings: DetectionSettings) -> Symptom | None:
    """Return whether the loss alternates from step to step: lag-one autocorrelation near -1."""
    if len(loss) < _RECENT:
        return None
    recent = loss[-_RECENT:]
    centred = recent - recent.mean()
    power = float(np.mean(centred**2))
    if power <= (settings.loss_move * abs(float(recent.mean()))) ** 2:
        return None
    correlation = float(np.mean(centred[1:] * centred[:-1])) / power
    if correlation > -settings.alternation:
        return None
    low, high = number(float(np.quantile(recent, 0.1))), number(float(np.quantile(recent, 0.9)))
    return Symptom(
        _RECENT - 1, -correlation, f"the loss alternates between {low} and {high} from step to step"
    )


def norm_exploded(norm: Float64Array, settings: DetectionSettings) -> Symptom | None:
    """Return whether two values stand at `explode_factor` times the recent median, or eight at its square root."""
    if len(norm) < _RECENT:
        return None
    middle = float(np.median(norm[-_RECENT:-_SUSTAINED_STEPS]))
    if middle <= 0:
        return None
    sharp = float(norm[-2:].min()) / middle
    lasting = float(norm[-_SUSTAINED_STEPS:].min()) / middle
    if sharp < settings.explode_factor and lasting < settings.explode_factor**0.5:
        return None
    ago = 1 if sharp >= settings.explode_factor else _SUSTAINED_STEPS - 1
    return Symptom(
        ago, max(sharp, lasting), f"it exploded from {number(middle)} to {number(float(norm[-1]))}"
    )


def norm_vanished(norm: Float64Array, settings: DetectionSettings) -> Symptom | None:
    """Return whether the last eight values are next to nothing beside those of 64 steps ago and before."""
    if len(norm) < 2 * _RECENT:
        return None
    middle = float(np.median(norm[:_RECENT]))
    latest = float(norm[-_SUSTAINED_STEPS:].max())
    if middle <= 0 or latest > settings.vanish_factor * middle:
        return None
    score = middle / max(latest, 1e-300)
    return Symptom(_SUSTAINED_STEPS - 1, score, f"it vanished, from {number(middle)} to {number(latest)}")


def scale_lost(scale: Float64Array, highest: float, settings: DetectionSettings) -> Symptom | None:
    """Return whether the loss scale is pinned at its minimum, or has collapsed within 64 steps.

    highest: the largest scale since training began.
    """
    if len(scale) < settings.pinned_steps:
        return None
    last = float(scale[-1])
    if last <= 1 and (scale[-settings.pinned_steps :] == last).all() and highest > last:
        words = f"it is pinned at {number(last)}, having been {number(highest)}: every step overflows"
        return Symptom(settings.pinned_steps - 1, highest / max(last, 1e-300), words)
    recent = float(scale[-_RECENT:].max())
    if len(scale) >= 2 * _RECENT and recent >= settings.collapse_factor * last:
        return Symptom(0, recent / max(last, 1e-300), f"it collapsed from {number(recent)} to {number(last)}")
    return None


def weights_still(digests: Float64Array, steps: int) -> Symptom | None:
    """Return whether the latest `steps` digests all occurred before: of parts that rotate, each has stayed."""
    if len(digests) < 2 * steps or not np.isin(digests[-steps:], digests[:-steps]).all():
        return None
    return Symptom(steps - 1, float(steps), f"the weights have not moved for {steps} steps")
