"""Finds NaN and infinity: which rank had the first one, at which step, and whether it spread to the others.

A finding names the ranks that were first; when all others follow, because the gradients are reduced over all
of them, that is an update of the same finding. When all ranks that report a metric are hit at the same step, nobody
is named. What else of the same ranks goes in the steps after it belongs to the fault; what goes later is a fault of its
own, so that a metric that never was finite does not hide the loss. A gradient that overflows under a dynamic loss
scale is the scaler's business and is not reported. Nothing is delayed: a finding carries the step that shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aggregator.detect.finding import CHRONIC, CLOSED, GLOBAL, OPEN, TRANSIENT, UPDATE, Finding, finding_id
from aggregator.detect.state import grown
from aggregator.detect.words import name_ranks
from rankside.tags import TagKind
from rankside.window import Column

if TYPE_CHECKING:
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

BoolArray = npt.NDArray[np.bool_]

_OVERFLOW = "overflow"
_GRADIENT = "grad"
_LOSS = "loss"


@dataclass(slots=True)
class _Fault:
    """One fault: the values of `tags`, by their places in the tag table, of `ranks`, or of all ranks once shared.

    grown: how many steps had been seen when its last tag came to it. quiet: of how many reports in a row all its
    values were finite. others: what is said of the other ranks when it opens. loss_step: the step at which the loss
    followed another metric.
    """

    ranks: tuple[int, ...]
    tag: str
    first_step: int
    last_step: int
    what: str
    others: str
    tags: dict[int, str]
    grown: int
    spread_step: int | None = None
    spread_tag: str = ""
    loss_step: int | None = None
    finite_since: int = 0
    quiet: int = 0
    chronic: bool = False

    @property
    def shared(self) -> bool:
        return not self.ranks or self.spread_step is not None

    @property
    def rows(self) -> slice | list[int]:
        return slice(None) if self.shared else list(self.ranks)


class NonfiniteDetector:
    """Opens a finding at the first non-finite value of a rank; remembers one bit of each rank and tag."""

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._forget()

    def _forget(self) -> None:
        self._faults: list[_Fault] = []
        self._bad = np.zeros((1, 0, 0), dtype=np.bool_)  # what each rank last said of each tag
        self._seen = 0

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:
        """Take one closed step; return the findings that it opens, changes or closes."""
        if matrix.session_start:
            self._forget()
        self._seen += 1
        if not self._faults and not merged.nonfinite.any():
            return ()
        bad = self._judged(matrix)
        self._bad = grown(self._bad, len(bad), int(matrix.tag_ids.max()) + 1)
        self._bad[0][:, matrix.tag_ids] = np.where(matrix.reported, bad, self._bad[0][:, matrix.tag_ids])
        findings = self._follow(matrix, bad)
        fresh = bad & ~self._known(matrix)
        if fresh.any():
            findings += self._take(matrix, bad, fresh)
        return tuple(findings)

    def _judged(self, matrix: StepMatrix) -> BoolArray:
        """Return shape (W, T), bool: where a rank has a non-finite value that means something."""
        bad: BoolArray = matrix.columns[Column.NONFINITE] > 0
        names = [matrix.tags[index].name for index in matrix.tag_ids]
        shown_only = [matrix.tags[index].kind is TagKind.INFO for index in matrix.tag_ids]
        bad = bad & ~np.array(shown_only, dtype=np.bool_)
        if _OVERFLOW in names and (matrix.columns[Column.MAX][:, names.index(_OVERFLOW)] > 0).any():
            bad &= ~np.array([_GRADIENT in name for name in names], dtype=np.bool_)
        return bad

    def _follow(self, matrix: StepMatrix, bad: BoolArray) -> list[Finding]:
        findings = []
        for fault in list(self._faults):
            columns = np.isin(matrix.tag_ids, list(fault.tags))
            if self._bad[0][fault.rows][:, list(fault.tags)].any():
                fault.quiet = 0
                if bad[fault.rows][:, columns].any():
                    fault.last_step = matrix.step
                    if not fault.chronic and matrix.step - fault.first_step >= self._settings.chronic_steps:
                        fault.chronic = True
                        findings.append(self._finding(fault, matrix.step, UPDATE))
            elif columns.any():
                fault.quiet += 1
                if fault.quiet == 1:
                    fault.finite_since = matrix.step
                if fault.quiet >= self._settings.quiet_steps:
                    self._faults.remove(fault)
                    findings.append(self._finding(fault, matrix.step, CLOSED))
        return findings

    def _known(self, matrix: StepMatrix) -> BoolArray:
        """Return shape (W, T), bool: what belongs to a fault already."""
        known = np.zeros((matrix.columns.shape[1], len(matrix.tag_ids)), dtype=np.bool_)
        for fault in self._faults:
            columns = np.isin(matrix.tag_ids, list(fault.tags))
            known[fault.rows] |= columns | (fault.shared and _LOSS in fault.tags.values())
        return known

    def _take(self, matrix: StepMatrix, bad: BoolArray, fresh: BoolArray) -> list[Finding]:
        """Add what has become bad to the faults that it belongs to, or open faults for it."""
        whole = (bad == matrix.reported).all(axis=0) & (matrix.reported.sum(axis=0) > 1)
        updated = [fault for fault in self._faults if self._absorb(fault, matrix, fresh, whole)]
        opened = self._open(matrix, bad, fresh, whole)
        self._faults += opened
        fresh &= whole
        if fresh.any():
            origin = next((fault for fault in self._faults if self._leads_to(fault, matrix, fresh)), None)
            if origin is None:
                opened.append(self._everybody(matrix, fresh))
                self._faults += opened[-1:]
            else:
                column = _origin(matrix, fresh)
                origin.spread_step = matrix.step
                origin.spread_tag = matrix.tags[int(matrix.tag_ids[column])].name
                self._add(origin, matrix, fresh)
                updated += [] if origin in opened or origin in updated else [origin]
        return [
            *(self._finding(fault, matrix.step, UPDATE) for fault in updated),
            *(self._finding(fault, matrix.step, OPEN) for fault in opened),
        ]

    def _absorb(self, fault: _Fault, matrix: StepMatrix, fresh: BoolArray, whole: BoolArray) -> bool:
        """Take what follows in the steps after a fault as a part of it; return whether the loss is among that."""
        if not self._is_young(fault):
            return False
        part = np.zeros_like(fresh)
        part[fault.rows] = fresh[fault.rows] & (whole if fault.shared else True)
        told = _LOSS in fault.tags.values()
        self._add(fault, matrix, part)
        fresh &= ~part
        if told or _LOSS not in fault.tags.values():
            return False
        fault.loss_step = matrix.step
        return True

    def _open(self, matrix: StepMatrix, bad: BoolArray, fresh: BoolArray, whole: BoolArray) -> list[_Fault]:
        """Open faults for ranks that others are better than, those of the fewest ranks first.

        The tag that fewest ranks share is closest to the origin: what is reduced is bad everywhere.
        """
        opened = []
        while (left := fresh & ~whole).any():
            column = _origin(matrix, left)
            ranks = np.flatnonzero(left[:, column])
            fault = self._fault(matrix, tuple(ranks.tolist()), column, left[ranks].any(axis=0))
            reporting = matrix.reported[:, column]
            others = int(reporting.sum()) - len(ranks)
            finite = int((reporting & ~bad[:, column]).sum())
            if not others:
                fault.others = "no other rank reports it"
            elif finite < others:
                fault.others = f"of the other {others} ranks {finite} are finite"
            elif others + len(ranks) < matrix.reported.any(axis=1).sum():
                fault.others = "those of the other ranks that report it are finite"
            else:
                fault.others = "the other ranks are finite"
            opened.append(fault)
            fresh[ranks] = False
        return opened

    def _everybody(self, matrix: StepMatrix, fresh: BoolArray) -> _Fault:
        column = _origin(matrix, fresh)
        fault = self._fault(matrix, (), column, fresh.any(axis=0))
        fault.others = "it hit every rank in the same step, so no rank is to blame"
        return fault

    def _fault(self, matrix: StepMatrix, ranks: tuple[int, ...], column: int, columns: BoolArray) -> _Fault:
        last = matrix.columns[Column.LAST][list(ranks) or slice(None), column]
        names = {int(index): matrix.tags[index].name for index in matrix.tag_ids[columns]}
        tag = matrix.tags[int(matrix.tag_ids[column])].name
        what = "infinite" if np.isinf(last).all() else "NaN"
        return _Fault(ranks, tag, matrix.step, matrix.step, what, "", names, self._seen)

    def _add(self, fault: _Fault, matrix: StepMatrix, part: BoolArray) -> None:
        if part.any():
            new = matrix.tag_ids[part.any(axis=0)]
            fault.tags.update({int(index): matrix.tags[index].name for index in new})
            fault.grown = self._seen

    def _is_young(self, fault: _Fault) -> bool:
        return self._seen - fault.grown <= self._settings.quiet_steps

    def _leads_to(self, fault: _Fault, matrix: StepMatrix, fresh: BoolArray) -> bool:
        """Return whether what has become bad on all ranks comes from this fault of some of them."""
        same = np.isin(matrix.tag_ids[fresh.any(axis=0)], list(fault.tags)).any()
        return not fault.shared and bool(self._is_young(fault) or same)

    def _finding(self, fault: _Fault, step: int, status: str) -> Finding:
        who = "all ranks" if not fault.ranks else name_ranks(fault.ranks)
        message = f"{who}: {fault.tag} is {fault.what} since step {fault.first_step}"
        if status == OPEN or not fault.ranks:
            message += f"; {fault.others}"
        if fault.loss_step is not None:
            message += f"; {_LOSS} also, since step {fault.loss_step}"
        if fault.spread_step is not None:
            message += f"; from step {fault.spread_step} on no rank has a finite {fault.spread_tag}"
        if fault.chronic and status == UPDATE:
            message += f"; still so after {step - fault.first_step} steps"
        if status == CLOSED:
            message += f"; over since step {fault.finite_since}"
        return Finding(
            kind="nonfinite",
            ranks=fault.ranks,
            tag=fault.tag,
            first_step=fault.first_step,
            step=step,
            persistence=GLOBAL if not fault.ranks else CHRONIC if fault.chronic else TRANSIENT,
            score=float(fault.last_step - fault.first_step + 1),
            evidence={
                "unit": "steps",
                "value": fault.what,
                "tags": sorted(fault.tags.values()),
                "spread_step": fault.spread_step,
                "last_bad_step": fault.last_step,
            },
            message=message,
            status=status,
            id=finding_id("nonfinite", fault.tag, fault.first_step, fault.ranks),
        )


def _origin(matrix: StepMatrix, where: BoolArray) -> int:
    """Return the column that fewest ranks share, of equals the loss."""
    hit = where.sum(axis=0).tolist()
    loss = [matrix.tags[index].name == _LOSS for index in matrix.tag_ids.tolist()]
    return min((column for column, ranks in enumerate(hit) if ranks), key=lambda c: (hit[c], not loss[c], c))
