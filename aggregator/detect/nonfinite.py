"""Finds NaN and infinity: which rank had the first one, at which step, and whether it spread to the others.

A finding names the ranks that were first; when all others follow, because the gradients are reduced over all
of them, that is an update of the same finding. When all ranks are hit at the same step, nobody is named. A
gradient that overflows under a dynamic loss scale is the scaler's business and is not reported. Nothing is
delayed: a finding carries the step that shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aggregator.detect.finding import CHRONIC, CLOSED, GLOBAL, OPEN, TRANSIENT, UPDATE, Finding, finding_id
from aggregator.detect.words import name_ranks
from rankside.tags import TagKind
from rankside.window import Column

if TYPE_CHECKING:
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

BoolArray = npt.NDArray[np.bool_]

_OVERFLOW = "overflow"
_GRADIENT = "grad"


@dataclass(slots=True)
class _Fault:
    ranks: tuple[int, ...]
    tag: str
    first_step: int
    last_step: int
    what: str
    tags: set[str] = field(default_factory=set)
    spread_step: int | None = None
    chronic: bool = False


class NonfiniteDetector:
    """Opens a finding at the first non-finite value of a rank; state of two numbers an open fault."""

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._faults: list[_Fault] = []

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:
        """Take one closed step; return the findings that it opens, changes or closes."""
        if matrix.session_start:
            self._faults = []
        if not self._faults and not merged.nonfinite.any():
            return ()
        bad = self._judged(matrix)
        findings = self._close(matrix, bad)
        known = {rank for fault in self._faults for rank in fault.ranks}
        fresh = [rank for rank in np.flatnonzero(bad.any(axis=1)).tolist() if rank not in known]
        for fault in self._faults:
            if bad[list(fault.ranks)].any():
                fault.last_step = matrix.step
                if not fault.chronic and matrix.step - fault.first_step >= self._settings.chronic_steps:
                    fault.chronic = True
                    findings.append(self._finding(fault, matrix.step, UPDATE))
        if fresh:
            findings.append(self._take(matrix, bad, fresh))
        return tuple(each for each in findings if each is not None)

    def _judged(self, matrix: StepMatrix) -> BoolArray:
        """Return shape (W, T), bool: where a rank has a non-finite value that means something."""
        bad: BoolArray = matrix.columns[Column.NONFINITE] > 0
        names = [matrix.tags[index].name for index in matrix.tag_ids]
        shown_only = [matrix.tags[index].kind is TagKind.INFO for index in matrix.tag_ids]
        bad = bad & ~np.array(shown_only, dtype=np.bool_)
        if _OVERFLOW in names and (matrix.columns[Column.MAX][:, names.index(_OVERFLOW)] > 0).any():
            bad &= ~np.array([_GRADIENT in name for name in names], dtype=np.bool_)
        return bad

    def _take(self, matrix: StepMatrix, bad: BoolArray, fresh: list[int]) -> Finding | None:
        reporting = matrix.reported.any(axis=1)
        known = {rank for fault in self._faults for rank in fault.ranks}
        rest = {rank for rank in np.flatnonzero(reporting).tolist() if rank not in known}
        if self._faults and (
            rest <= set(fresh) or any(fault.spread_step is not None for fault in self._faults)
        ):
            fault = self._faults[0]
            if fault.spread_step is not None or not fault.ranks:
                return None
            fault.spread_step = matrix.step
            return self._finding(fault, matrix.step, UPDATE)
        # The tag that fewest ranks share is closest to the origin: what is reduced is bad everywhere.
        hit = bad.sum(axis=0)
        names = [matrix.tags[index].name for index in matrix.tag_ids]
        shown = [i for i in range(len(names)) if hit[i]]
        column = min(shown, key=lambda i: (hit[i], names[i] != "loss", i))
        ranks = tuple(rank for rank in np.flatnonzero(bad[:, column]).tolist() if rank in set(fresh))
        if not ranks:
            ranks = tuple(fresh)
        last = matrix.columns[Column.LAST][list(ranks), column]
        everybody = len(ranks) > 1 and len(ranks) == int(reporting.sum())
        fault = _Fault(
            () if everybody else ranks,
            names[column],
            matrix.step,
            matrix.step,
            "infinite" if np.isinf(last).all() else "NaN",
            {names[i] for i in shown},
        )
        self._faults.append(fault)
        return self._finding(fault, matrix.step, OPEN)

    def _close(self, matrix: StepMatrix, bad: BoolArray) -> list[Finding | None]:
        closed: list[Finding | None] = []
        for fault in list(self._faults):
            still = bad[list(fault.ranks)].any() if fault.ranks else bad.any()
            if still:
                fault.last_step = matrix.step
            elif matrix.step - fault.last_step >= self._settings.quiet_steps:
                self._faults.remove(fault)
                closed.append(self._finding(fault, matrix.step, CLOSED))
        return closed

    def _finding(self, fault: _Fault, step: int, status: str) -> Finding:
        everybody = not fault.ranks
        lasted = fault.last_step - fault.first_step + 1
        who = "all ranks" if everybody else name_ranks(fault.ranks)
        message = f"{who}: {fault.tag} is {fault.what} since step {fault.first_step}"
        if everybody:
            message += "; it hit every rank in the same step, so no rank is to blame"
        elif status == OPEN:
            message += "; the other ranks are finite"
        if fault.spread_step is not None:
            message += f"; from step {fault.spread_step} on every rank has values that are not finite"
        if fault.chronic and status == UPDATE:
            message += f"; still so after {step - fault.first_step} steps"
        if status == CLOSED:
            message += f"; over since step {fault.last_step + 1}"
        return Finding(
            kind="nonfinite",
            ranks=fault.ranks,
            tag=fault.tag,
            first_step=fault.first_step,
            step=step,
            persistence=GLOBAL if everybody else CHRONIC if fault.chronic else TRANSIENT,
            score=float(lasted),
            evidence={
                "unit": "steps",
                "value": fault.what,
                "tags": sorted(fault.tags),
                "spread_step": fault.spread_step,
                "last_bad_step": fault.last_step,
            },
            message=message,
            status=status,
            id=finding_id("nonfinite", fault.tag, fault.first_step, fault.ranks),
        )
