"""Prints one line every so many steps: what matters of the step, and where this rank is against the others.

The line is made and printed on the background thread, from the values that are fetched for the report anyway.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankside.training.collector import Draft, Training

logger = logging.getLogger("crossrank")

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
        draft.values.update(_noting(known, draft.values))
        draft.deferred[:] = [partial(_note_many, known, several) for several in draft.deferred]
        draft.deferred.append(partial(self._print, draft.step, known))

    def _print(self, step: int, known: Mapping[str, float]) -> Mapping[str, float]:
        training = self._training
        if training is None:
            return {}
        parts = [
            f"{label} {known[tag] * factor:.4g}{unit}" for tag, label, factor, unit in _SHOWN if tag in known
        ]
        if training.recorder.standing:
            parts.append(training.recorder.standing)
        if any(not math.isfinite(known[tag]) for tag, *_ in _SHOWN if tag in known):
            parts.append("NOT FINITE")
        try:
            self._write(f"step {step}: {', '.join(parts)}")
        except (OSError, ValueError) as error:  # the terminal is gone, or stdout is closed
            logger.warning("no more progress lines are printed: %s", error)
            self._training = None
        return {}


def _noting(known: dict[str, float], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as they are to be handed on, so that those that are shown become known."""
    noting = dict(values)
    for tag, *_ in _SHOWN:
        value = values.get(tag)
        if callable(value):
            noting[tag] = partial(_note_one, known, tag, value)
        elif value is not None:
            known[tag] = value
    return noting


def _note_one(known: dict[str, float], tag: str, fetch: Callable[[], float]) -> float:
    known[tag] = value = fetch()
    return value


def _note_many(known: dict[str, float], fetch: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    return _noting(known, fetch())
