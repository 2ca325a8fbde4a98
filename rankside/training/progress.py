"""Prints one line every so many steps: what matters of the step, and where this rank is against the others.

The line is made and printed on the background thread, from the values that are fetched for the report anyway.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankside.training.collector import Draft, Training

_SHOWN = (
    ("loss", "loss", 1.0, ""),
    ("learning-rate", "lr", 1.0, ""),
    ("loss-scale", "scale", 1.0, ""),
    ("grad-norm", "grad norm", 1.0, ""),
    ("local-grad-norm", "local grad norm", 1.0, ""),
    ("iteration-time", "step", 1.0, " ms"),
    ("data-time", "data", 1.0, " ms"),
)


class Progress(Collector):
    """Prints a line every `every` steps, on rank 0.

    Must come after the collectors whose numbers it shows. write: what prints a line.
    """

    name = "progress line"

    def __init__(self, every: int, *, write: Callable[[str], None] = print) -> None:
        self._every = every
        self._write = write
        self._training: Training | None = None

    def train_begin(self, training: Training) -> None:
        """Learn which rank this is."""
        self._training = training

    def step_end(self, draft: Draft) -> None:
        """Add the printing of a line to the report, where one is due."""
        if self._training is None or self._training.rank != 0:
            return
        if draft.step // self._every == (draft.step - draft.steps) // self._every:
            return
        known: dict[str, float] = {}
        shown = {tag for tag, *_ in _SHOWN}
        for tag in shown & draft.values.keys():
            value = draft.values[tag]
            if callable(value):
                draft.values[tag] = partial(_note_one, known, tag, value)
            else:
                known[tag] = value
        draft.deferred[:] = [partial(_note_many, known, several) for several in draft.deferred]
        draft.deferred.append(partial(self._print, draft.step, known))

    def _print(self, step: int, known: Mapping[str, float]) -> Mapping[str, float]:
        parts = [
            f"{label} {known[tag] * factor:.4g}{unit}" for tag, label, factor, unit in _SHOWN if tag in known
        ]
        training = self._training
        standing = getattr(training.recorder, "standing", None) if training else None
        if standing:
            parts.append(str(standing))
        if any(not math.isfinite(known[tag]) for tag, *_ in _SHOWN if tag in known):
            parts.append("NOT FINITE")
        self._write(f"step {step}: {', '.join(parts)}")
        return {}


def _note_one(known: dict[str, float], tag: str, fetch: Callable[[], float]) -> float:
    known[tag] = value = fetch()
    return value


def _note_many(known: dict[str, float], fetch: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    values = fetch()
    known.update(values)
    return values
