"""Finds who is gone and whom the others wait for, from signs of life rather than from steps.

The caller brings the clock: all durations are arguments. A rank that is late in the loop is at fault only
when others wait for it inside a step; when all are inside the same step nobody can be singled out, and it is
said so. When a rank ends and msrun then ends the others, the one that ended first is named, and it is told that
the others followed. Where all end at once, as when a job is stopped, or where it is not known when they ended, nobody
is named; those who went first stay named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggregator.detect.finding import CHRONIC, CLOSED, GLOBAL, OPEN, UPDATE, Finding, finding_id
from aggregator.detect.words import name_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggregator.detect.settings import DetectionSettings

IN_THE_STEP = "in the step"
_EXCUSED = ("evaluating", "leaving", "idle", "starting")


class SignsOfLife(NamedTuple):
    """What is known of each rank now; all of length W.

    last_step: int64, the last step that it finished. phase: what it said it was doing. phase_seconds:
    float64, for how long, up to now. silent_seconds: float64, since it was last heard. lost: bool, it is known
    to be gone, as when its process has ended. left: bool, it said goodbye. seen: bool, it was heard at all.
    ended_seconds: float64, since its process ended or its training failed; NaN where that is not known. failed:
    what ended its training, as it said at its goodbye, or "".
    """

    last_step: npt.NDArray[np.int64]
    phase: Sequence[str]
    phase_seconds: npt.NDArray[np.float64]
    silent_seconds: npt.NDArray[np.float64]
    lost: npt.NDArray[np.bool_]
    left: npt.NDArray[np.bool_]
    seen: npt.NDArray[np.bool_]
    ended_seconds: npt.NDArray[np.float64]
    failed: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: str
    ranks: tuple[int, ...]
    finding: Finding


class SilenceDetector:
    """One finding a fault: opened when it is certain, updated when ranks join, closed when they go on."""

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._open: dict[str, _Fault] = {}

    def observe(self, signs: SignsOfLife) -> tuple[Finding, ...]:
        """Take the state of all ranks now; return what is new about who is silent or stalled."""
        silent = find_silent(signs, self._settings)
        stalled = None if silent is not None else find_stalled(signs, self._settings)
        return (*self._change("silent", silent), *self._change("stalled", stalled))

    def _change(self, kind: str, found: Finding | None) -> list[Finding]:
        before = self._open.get(kind)
        if found is None:
            return [] if before is None else [self._close(kind, before.finding)]
        if kind == "silent" and not found.ranks and before is not None:
            return []
        if before is None:
            self._open[kind] = _Fault(kind, found.ranks, found)
            return [found]
        if found.ranks == before.ranks and found.first_step == before.finding.first_step:
            return []
        if found.first_step != before.finding.first_step and not set(found.ranks) & set(before.ranks):
            self._open[kind] = _Fault(kind, found.ranks, found)
            return [replace(before.finding, status=CLOSED), found]
        joined = replace(found, status=UPDATE, id=before.finding.id, first_step=before.finding.first_step)
        self._open[kind] = _Fault(kind, found.ranks, joined)
        return [joined]

    def _close(self, kind: str, finding: Finding) -> Finding:
        del self._open[kind]
        message = f"{name_ranks(finding.ranks)}: going on after the stop at step {finding.first_step}"
        if kind == "stalled" and "silent" in self._open:
            message = f"{finding.message}; it is silent now"
        return replace(finding, status=CLOSED, message=message)


def find_silent(signs: SignsOfLife, settings: DetectionSettings) -> Finding | None:
    """Return who is gone without a goodbye or has failed before all others, or None."""
    silent = ~signs.left & (signs.lost | (signs.silent_seconds >= settings.silent_seconds))
    failed = signs.left & np.array([bool(error) for error in signs.failed], dtype=np.bool_)
    gone = signs.seen & (silent | (failed & (signs.ended_seconds >= settings.failed_seconds)))
    if not gone.any():
        return None
    alive = int((signs.seen & ~gone & ~signs.left).sum())
    followers = _followers(signs, gone, settings)
    ranks = tuple(np.flatnonzero(gone & ~followers).tolist())
    if np.all(failed[list(ranks)]) and len(ranks) == signs.seen.sum():
        return None  # the same error on all of them, which each has printed
    if len(ranks) > 1 and not alive:
        front = int(signs.last_step[list(ranks)].max())
        message = (
            f"all {len(ranks)} ranks that were left are gone without a goodbye after step {front}: either the job was "
            "stopped, or one rank died and msrun then ended the others: msrun's output names it"
        )
        return _finding("silent", (), signs, message, first_step=front + 1, step=front, score=0.0)
    if followers.any():  # then it is known when each of them ended
        first = max(ranks, key=lambda rank: float(signs.ended_seconds[rank]))
    else:
        first = min(ranks, key=lambda rank: (signs.last_step[rank], -signs.silent_seconds[rank]))
    step = int(signs.last_step[first])
    front = int(signs.last_step[signs.seen].max())
    return _finding(
        "silent",
        ranks,
        signs,
        _tell_silent(signs, ranks, first, np.flatnonzero(followers).tolist(), alive),
        first_step=step + 1,
        step=front,
        score=float(signs.silent_seconds[first]),
    )


def _followers(
    signs: SignsOfLife, gone: npt.NDArray[np.bool_], settings: DetectionSettings
) -> npt.NDArray[np.bool_]:
    """Return which of those that are gone ended because another one had ended clearly before all of them.

    Those that are killed together end within a few milliseconds; msrun looks once a second for one that ended.
    """
    ended = np.where(gone, signs.ended_seconds, 0.0)
    first = int(np.argmax(ended))  # one whose end is not known, NaN, where there is such a one
    behind = ended[first] - ended
    others = gone & (np.arange(len(gone)) != first)
    if not np.all(behind[others] >= settings.apart_seconds):
        return np.zeros_like(gone)
    alike = np.array([bool(error) and error == signs.failed[first] for error in signs.failed], dtype=np.bool_)
    followers: npt.NDArray[np.bool_] = others & (behind <= settings.following_seconds) & ~alike
    return followers


def _tell_silent(
    signs: SignsOfLife, ranks: Sequence[int], first: int, followers: Sequence[int], alive: int
) -> str:
    if signs.failed[first]:
        what = f"failed: {signs.failed[first]}; rank {first} ended"
        look = "look at its log"
    else:
        what = "gone" if signs.lost[first] else "no sign of life"
        what = f"{what} without a goodbye; rank {first} was last heard"
        look = "look for its process, its exit code and its log, and for the kernel's out-of-memory killer (dmesg)"
    message = (
        f"{name_ranks(ranks)}: {what} {signs.silent_seconds[first]:.0f} s ago, {signs.phase[first]} after step "
        f"{signs.last_step[first]}"
    )
    if followers:
        later = signs.ended_seconds[first] - max(signs.ended_seconds[rank] for rank in followers)
        message += f"; {name_ranks(followers)} ended {later:.2f} s after it or later, in consequence"
    if alive:
        living = "1 rank is" if alive == 1 else f"{alive} ranks are"
        message += f"; {living} alive and will wait for it"
    return f"{message}: {look}"


def find_stalled(signs: SignsOfLife, settings: DetectionSettings) -> Finding | None:
    """Return for whom the other ranks wait inside a step, or None.

    Nobody is named, in a global finding, when all ranks have been inside the same step for too long.
    """
    there = signs.seen & ~signs.left
    if not there.any():
        return None
    inside = there & np.array([phase == IN_THE_STEP for phase in signs.phase], dtype=np.bool_)
    # How far along each rank is: whoever is inside step s + 1 is half a step beyond having finished s.
    progress = np.where(there, signs.last_step + 0.5 * inside, -np.inf)
    front = progress.max()
    waiting = inside & (progress == front)
    if not waiting.any():
        return None
    patience = settings.first_step_seconds if signs.last_step[there].max() <= 0 else settings.stalled_seconds
    waited = float(signs.phase_seconds[waiting].min())
    if waited < patience:
        return None
    step = int(signs.last_step[waiting][0]) + 1
    behind = there & (progress < front)
    ranks = tuple(np.flatnonzero(behind).tolist())
    if not ranks:
        message = (
            f"all {int(waiting.sum())} ranks have been inside step {step} for {waited:.0f} s: a collective or a device "
            "hangs, and the ranks' own reports cannot single out one of them"
        )
        return _finding("stalled", (), signs, message, first_step=step, step=step - 1, score=waited)
    excused = [signs.phase[rank] in _EXCUSED for rank in ranks]
    if all(excused) and waited < settings.first_step_seconds:
        return None
    doing = {rank: (signs.phase[rank], float(signs.phase_seconds[rank])) for rank in ranks}
    slowest = max(ranks, key=lambda rank: doing[rank][1])
    message = (
        f"{name_ranks(ranks)}: has not reached step {step}, in which {int(waiting.sum())} ranks have waited for "
        f"{waited:.0f} s; rank {slowest} has been {doing[slowest][0]} for {doing[slowest][1]:.0f} s"
    )
    if len(ranks) > 1:
        message = message.replace(": has not", ": have not", 1)
    return _finding("stalled", ranks, signs, message, first_step=step, step=step - 1, score=waited)


def _finding(
    kind: str,
    ranks: tuple[int, ...],
    signs: SignsOfLife,
    message: str,
    *,
    first_step: int,
    step: int,
    score: float,
) -> Finding:
    return Finding(
        kind=kind,
        ranks=ranks,
        tag="",
        first_step=first_step,
        step=max(step, first_step),
        persistence=CHRONIC if ranks else GLOBAL,
        score=score,
        evidence={
            "unit": "seconds",
            "last_step": {str(rank): int(signs.last_step[rank]) for rank in ranks[:64]},
            "phase": {str(rank): signs.phase[rank] for rank in ranks[:64]},
            "phase_seconds": {str(rank): round(float(signs.phase_seconds[rank]), 1) for rank in ranks[:64]},
            "silent_seconds": {str(rank): round(float(signs.silent_seconds[rank]), 1) for rank in ranks[:64]},
        },
        message=message,
        status=OPEN,
        id=finding_id(kind, "progress", first_step, ranks),
    )
