"""Finds what is wrong with all ranks at once, and names nobody for it.

A finding is held back for some steps: when a single rank turns out to explain it, because a damaged rank
moves what is reduced over all of them, it is told as part of that rank's finding instead.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect import symptoms
from aggregator.detect.causes import find_causes
from aggregator.detect.finding import CLOSED, GLOBAL, OPEN, UPDATE, Finding, finding_id
from rankside.window import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from aggregator.detect.history import History
    from aggregator.detect.settings import DetectionSettings
    from aggregator.detect.symptoms import Symptom
    from aggregator.step import MergedStep, StepMatrix

    Float64Array = npt.NDArray[np.float64]

_LOSS, _SCALE, _FINGERPRINT, _RATE = "loss", "loss-scale", "param-fingerprint", "learning-rate"
_NORMS = ("grad-norm", "local-grad-norm")
_KEPT = 256
_FIRST_KEPT = 50
_RARE_STEPS = 16


@dataclass(slots=True)
class _Case:
    """A symptom on its way: held back, opened, or explained by a rank."""

    tag: str
    first_step: int
    noticed_step: int
    last_step: int
    symptom: Symptom
    opened: bool = False
    explained: bool = False
    also: list[str] = field(default_factory=list)


class HealthDetector:
    """Keeps the last values of the ranks' median of a few metrics."""

    def __init__(self, settings: DetectionSettings, history: History) -> None:
        self._settings = settings
        self._history = history
        self._forget()

    def _forget(self) -> None:
        self._series: dict[str, deque[float]] = {}
        self._steps: dict[str, deque[int]] = {}  # at which these were reported
        self._first_loss: list[float] = []
        self._first_step: int | None = None
        self._cases: dict[str, _Case] = {}
        self._zero: dict[
            str, tuple[int, int]
        ] = {}  # for how many reports a layer has had no gradient, and since when
        self._highest_scale = 0.0
        self._loss_told = False
        self._count = 0

    def observe(
        self, matrix: StepMatrix, merged: MergedStep, explanation: Callable[[int, int], Finding | None]
    ) -> tuple[Finding, ...]:
        """Take one closed step; return what it opens or closes.

        explanation: returns the finding about single ranks, if any, that began nearest to the first of two given
            steps and by the second.
        """
        if matrix.session_start:
            self._forget()
        if self._first_step is None:
            self._first_step = matrix.step
        self._count += 1
        self._keep(matrix)
        self._watch_layers(matrix, merged)
        findings: list[Finding] = []
        for key, tag, symptom, first_step in self._noticed():
            case = self._cases.setdefault(key, _Case(tag, first_step, matrix.step, matrix.step, symptom))
            case.last_step = matrix.step
        for key, case in list(self._cases.items()):
            findings += self._settle(key, case, matrix, explanation)
        return tuple(findings)

    def _settle(
        self, key: str, case: _Case, matrix: StepMatrix, explanation: Callable[[int, int], Finding | None]
    ) -> Iterator[Finding]:
        hold = self._settings.global_hold_steps
        if not case.opened and not case.explained:
            began = case.first_step
            culprit = explanation(began, began + hold) if _is_explicable(key) else None
            if culprit is not None:
                case.explained = True
                yield _add_to(culprit, case, matrix.step)
            elif matrix.step - case.noticed_step >= hold or not _is_explicable(key):
                case.opened = True
                self._loss_told |= case.tag == _LOSS and key != "loss flat"
                self._join(case)
                yield self._finding(case, matrix, OPEN)
        if matrix.step - case.last_step >= self._settings.quiet_steps + _RARE_STEPS:
            del self._cases[key]
            if case.opened:
                yield self._finding(case, matrix, CLOSED)

    def _join(self, case: _Case) -> None:
        """Make what was noticed at about the same time part of this case: one event shows in several metrics."""
        for key, other in self._cases.items():
            near = abs(other.first_step - case.first_step) <= self._settings.global_hold_steps
            if (
                other is not case
                and not other.opened
                and not other.explained
                and near
                and _is_explicable(key)
            ):
                other.explained = True
                case.also.append(f"{other.tag}: {other.symptom.words}")

    def _keep(self, matrix: StepMatrix) -> None:
        names = (_LOSS, _SCALE, _FINGERPRINT, _RATE, *_NORMS)
        for column, index in enumerate(matrix.tag_ids.tolist()):
            name = matrix.tags[index].name
            if name not in names:
                continue
            values = matrix.columns[Column.MEAN][:, column]
            values = values[np.isfinite(values)]
            if len(values):
                limit = 2 * self._settings.still_steps if name == _FINGERPRINT else _KEPT
                # Replicas may differ by a damaged rank: a digest has no meaningful median between two values.
                middle = float(np.sort(values)[(len(values) - 1) // 2])
                if name == _SCALE:
                    self._highest_scale = max(self._highest_scale, middle)
                self._series.setdefault(name, deque(maxlen=limit)).append(middle)
                self._steps.setdefault(name, deque(maxlen=limit)).append(matrix.step)
                if name == _LOSS and len(self._first_loss) < _FIRST_KEPT:
                    self._first_loss.append(middle)

    def _watch_layers(self, matrix: StepMatrix, merged: MergedStep) -> None:
        for column, index in enumerate(matrix.tag_ids.tolist()):
            name = matrix.tags[index].name
            if "grad-norm/" in name or "local_norm/" in name:
                zero = merged.maximum[column] <= self._settings.zero_norm
                reports, since = self._zero.get(name, (0, matrix.step))
                self._zero[name] = (
                    (reports + 1, since if reports else matrix.step) if zero else (0, matrix.step)
                )

    def _noticed(self) -> Iterator[tuple[str, str, Symptom, int]]:
        """Go through what is wrong now: what it is, in which metric, how, and since which step."""
        settings = self._settings
        series = {name: np.array(kept) for name, kept in self._series.items()}
        loss = series.get(_LOSS, np.empty(0))
        rare = self._count % _RARE_STEPS == 0
        found: list[tuple[str, str, Symptom | None]] = [
            ("loss spike", _LOSS, symptoms.loss_spike(loss, settings))
        ]
        found += [
            ("norm exploded", n, symptoms.norm_exploded(series[n], settings)) for n in _NORMS if n in series
        ]
        found += [
            ("norm vanished", n, symptoms.norm_vanished(series[n], settings)) for n in _NORMS if n in series
        ]
        if _SCALE in series:
            found.append(
                ("loss scale", _SCALE, symptoms.scale_lost(series[_SCALE], self._highest_scale, settings))
            )
        if rare:
            found.append(("loss rising", _LOSS, symptoms.loss_rising(loss, settings)))
            found.append(("oscillation", _LOSS, symptoms.loss_oscillates(loss, settings)))
            if (
                not self._loss_told
                and self._count >= settings.flat_steps
                and (self._first_step or 0) <= settings.fresh_step
                and len(loss) >= _KEPT
            ):
                found.append(("loss flat", _LOSS, symptoms.loss_flat(np.array(self._first_loss), loss)))
            if _FINGERPRINT in series:
                still = symptoms.weights_still(series[_FINGERPRINT], settings.still_steps)
                found.append(("weights still", _FINGERPRINT, still))
        for key, tag, symptom in found:
            if symptom is not None:
                steps = self._steps[tag]
                yield key, tag, symptom, steps[max(-1 - symptom.ago, -len(steps))]
        stuck = sorted(name for name, (reports, _) in self._zero.items() if reports >= settings.still_steps)
        if stuck and len(stuck) < len(self._zero):
            named = f"{', '.join(stuck[:4])}{', …' if len(stuck) > 4 else ''}"
            words = f"{len(stuck)} of {len(self._zero)} layers have had no gradient on any rank ({named})"
            symptom = symptoms.Symptom(settings.still_steps - 1, float(len(stuck)), words)
            yield "layers stuck", stuck[0], symptom, self._zero[stuck[0]][1]

    def _finding(self, case: _Case, matrix: StepMatrix, status: str) -> Finding:
        world_size = matrix.columns.shape[1]
        causes = find_causes(
            self._history, matrix.tags, ranks=(), step=case.noticed_step, world_size=world_size
        )
        causes = [cause for cause in causes if cause.tag != case.tag and (cause.moved or cause.tag == _RATE)]
        words = [
            case.symptom.words,
            *case.also,
            "all ranks alike, no rank is to blame",
            *(cause.sentence() for cause in causes),
        ]
        message = f"{case.tag} since step {case.first_step}: {'; '.join(words)}"
        if status == CLOSED:
            message = f"{case.tag}: not seen since step {case.last_step + 1}: {case.symptom.words}"
        return Finding(
            kind="global",
            ranks=(),
            tag=case.tag,
            first_step=case.first_step,
            step=matrix.step,
            persistence=GLOBAL,
            score=case.symptom.score,
            evidence={
                "unit": "see the message",
                "symptom": case.symptom.words,
                "causes": [cause._asdict() for cause in causes],
            },
            message=message,
            status=status,
            id=finding_id("global", case.tag, case.first_step, ()),
        )


def _is_explicable(key: str) -> bool:
    """Return whether a single damaged rank can do this to all of them through the reduced gradient."""
    return key not in {"loss flat", "weights still", "layers stuck"}


def _add_to(culprit: Finding, case: _Case, step: int) -> Finding:
    explains = f"since step {case.first_step}: {case.tag}: {case.symptom.words}"
    return replace(culprit, step=step, status=UPDATE, evidence={**culprit.evidence, "explains": explains})
