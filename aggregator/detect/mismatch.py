"""Finds replicated numbers that are not equal: drifted parameters, another learning rate, another loss scale.

Values are compared within one step and one replica group only, so a fingerprint that rotates over the parts
of a model may be compared too. The majority names the odd ones; without a majority nobody is singled out, and
the finding says so. The step that shows it carries the finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aggregator.detect.finding import CHRONIC, CLOSED, GLOBAL, OPEN, TRANSIENT, UPDATE, Finding, finding_id
from aggregator.detect.state import grown
from aggregator.detect.words import apart, name_ranks
from rankside.window import Column

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggregator.detect.peers import Grouping, PeerGroups
    from aggregator.detect.replicated import ReplicatedTags
    from aggregator.detect.settings import DetectionSettings
    from aggregator.step import MergedStep, StepMatrix

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]
    BoolArray = npt.NDArray[np.bool_]

_FINGERPRINT = "param-fingerprint"
# A fingerprint may begin with parts that are equal whatever the seed is, such as biases of zero.
_FIRST_COMPARISONS = 32
_MOST_SHOWN = 3  # different values in a sentence


@dataclass(slots=True)
class _Fault:
    """One fault of a replica group.

    group: the ranks that were compared. members: all that belong to it. equal_step: the last step at which a comparison
    with the ranks at fault found no difference.
    """

    ranks: tuple[int, ...]
    group: tuple[int, ...]
    members: tuple[int, ...]
    tag: str
    first_step: int
    last_step: int
    message: str
    score: float
    evidence: dict[str, object]
    tags: set[str] = field(default_factory=set)
    equal_step: int = -1
    chronic: bool = False

    @property
    def singled_out(self) -> bool:
        return bool(self.evidence["singled_out"])


class MismatchDetector:
    """Opens a finding at the first step at which replicas differ."""

    def __init__(self, settings: DetectionSettings, groups: PeerGroups, replicated: ReplicatedTags) -> None:
        self._settings = settings
        self._groups = groups
        self._replicated = replicated
        self._forget()

    def _forget(self) -> None:
        self._faults: list[_Fault] = []
        self._comparisons: dict[int, int] = {}
        self._equal_at: dict[int, int] = {}
        self._given = np.zeros((1, 0, 0))  # the last step at which each rank gave each number

    def observe(self, matrix: StepMatrix, merged: MergedStep) -> tuple[Finding, ...]:  # noqa: ARG002
        """Take one closed step; return the findings that it opens, changes or closes."""
        if matrix.session_start:
            self._forget()
        tags = [(int(index), matrix.tags[index]) for index in matrix.tag_ids]
        judged = np.array([self._replicated.is_replicated(i, tag.kind) for i, tag in tags], dtype=np.bool_)
        self._replicated.learn(matrix.tag_ids, matrix.columns)
        if not judged.any():
            return ()
        columns, ids = matrix.columns[:, :, judged], matrix.tag_ids[judged]
        names = [matrix.tags[index].name for index in ids]
        grouping = self._groups.replicas(columns.shape[1])
        awaited = self._awaited(matrix, ids, names, grouping)
        differs = self._differing(grouping, columns, names) & ~awaited
        findings: list[Finding] = []
        if differs.any():
            for group, column in np.argwhere(differs).tolist():
                members = grouping.members[group][grouping.present[group]]
                findings += self._take(matrix, int(ids[column]), members, columns[:, members, column])
        given = grouping.gather(np.where(columns[Column.COUNT] > 0, 1.0, np.nan))
        compared = ~awaited & (np.nansum(given, axis=1) > 1)
        self._note_equal(matrix.step, names, compared & ~differs, columns[Column.COUNT] > 0, grouping)
        compared = compared.any(axis=0) & ~awaited.any(axis=0)
        for index, differed in zip(
            ids[compared].tolist(), differs.any(axis=0)[compared].tolist(), strict=True
        ):
            self._comparisons[index] = self._comparisons.get(index, 0) + 1
            if not differed:
                self._equal_at[index] = matrix.step
        return (*findings, *self._follow(matrix.step))

    def _awaited(
        self, matrix: StepMatrix, ids: Int64Array, names: list[str], grouping: Grouping
    ) -> BoolArray:
        """Return shape (G, T): where a rank gives no digest at this step, although it has given one of late.

        Ranks begin with dense digests one after the other, and those that have begun cannot say who is right.
        """
        given = matrix.reported[:, np.isin(matrix.tag_ids, ids)]
        self._given = grown(self._given, len(given), int(ids.max()) + 1)
        last = self._given[0][:, ids]
        of_late = (last > 0) & (matrix.step - last < self._settings.mismatch_quiet_steps)
        here = matrix.reported.any(axis=1, keepdims=True)
        awaited = here & ~given & of_late & [name.startswith(_FINGERPRINT) for name in names]
        self._given[0][:, ids] = np.where(given, matrix.step, last)
        found: BoolArray = np.nansum(grouping.gather(awaited.astype(np.float64)), axis=1) > 0
        return found

    def _differing(
        self, grouping: Grouping, columns: Float64Array, names: list[str]
    ) -> npt.NDArray[np.bool_]:
        """Return shape (G, T): where a group does not agree."""
        grid = grouping.gather(columns[Column.MEAN])
        high = np.max(np.where(np.isnan(grid), -np.inf, grid), axis=1)
        low = np.min(np.where(np.isnan(grid), np.inf, grid), axis=1)
        size = np.maximum(np.abs(high), np.abs(low))
        several = np.isfinite(high)
        with np.errstate(invalid="ignore"):
            result: npt.NDArray[np.bool_] = several & (high - low > self._tolerance(names) * size)
        return result

    def _tolerance(self, names: list[str]) -> Float64Array:
        return np.array(
            [0.0 if name.startswith(_FINGERPRINT) else self._settings.mismatch_tolerance for name in names]
        )

    def _take(
        self, matrix: StepMatrix, index: int, members: Int64Array, columns: Float64Array
    ) -> list[Finding]:
        tag = matrix.tags[index].name
        # Windows of different lengths have different means, and nobody is to blame for it.
        counts = columns[Column.COUNT]
        usual = np.max(counts)
        known = counts == usual
        ranks, values = members[known], columns[Column.MEAN][known]
        clusters = _clusters(values, float(self._tolerance([tag])[0]))
        if len(clusters) < 2:
            return []
        clusters.sort(key=len, reverse=True)
        majority = len(clusters[0]) * 2 > len(ranks)
        odd = tuple(sorted(int(ranks[i]) for cluster in clusters[1:] for i in cluster)) if majority else ()
        group = tuple(int(rank) for rank in ranks)
        faults = [
            fault
            for fault in self._faults
            if not set(fault.members).isdisjoint(members.tolist()) and _belongs(fault, tag, odd)
        ]
        updates = []
        for fault in faults:
            fault.last_step = matrix.step
            if tag not in fault.tags:
                fault.tags.add(tag)
                fault.message += f"; {tag} also differs, since step {matrix.step}"
                updates.append(_finding(fault, matrix.step, UPDATE))
        if faults:
            known = {rank for fault in faults for rank in (fault.ranks if fault.singled_out else odd)}
            odd = tuple(rank for rank in odd if rank not in known)
            if not odd:
                return updates
        unseeded = (
            tag.startswith(_FINGERPRINT)
            and len(clusters) == len(ranks)
            and self._comparisons.get(index, 0) < _FIRST_COMPARISONS
        )
        named = odd if majority else (group if len(group) == 2 and not unseeded else ())
        fault = _Fault(
            named,
            group,
            tuple(members.tolist()),
            tag,
            matrix.step,
            matrix.step,
            _sentence(tag, self._since(index, matrix.step), group, odd, values, clusters, unseeded=unseeded),
            float(np.max(values) - np.min(values)),
            {
                "unit": "largest difference",
                "group": list(group),
                "distinct_values": len(clusters),
                "singled_out": majority,
                "unseeded": unseeded,
                "equal_at": self._equal_at.get(index),
                "majority_value": float(values[clusters[0][0]]) if majority else None,
                "odd_values": [float(values[cluster[0]]) for cluster in clusters[1:9]],
            },
            {tag},
        )
        self._faults.append(fault)
        return [*updates, _finding(fault, matrix.step, OPEN)]

    def _note_equal(
        self, step: int, names: list[str], equal: BoolArray, given: BoolArray, grouping: Grouping
    ) -> None:
        """Take note for each fault where its numbers are equal; equal: shape (G, T), given: shape (W, T)."""
        for fault in self._faults:
            columns = [column for column, name in enumerate(names) if name in fault.tags]
            shown = given[list(fault.ranks or fault.group)][:, columns].any(axis=0)
            if (equal[grouping.group_of[fault.members[0]], columns] & shown).any():
                fault.equal_step = step

    def _since(self, index: int, step: int) -> str:
        """Return in words since when: what is compared at times only was equal at some earlier step."""
        equal_at = self._equal_at.get(index)
        if equal_at is None or equal_at == step - 1:
            return f"since step {step}"
        return f"at step {step} (the comparison at step {equal_at} found no difference)"

    def _follow(self, step: int) -> list[Finding]:
        findings = []
        for fault in list(self._faults):
            # A fingerprint that rotates comes back to the bad part only after a while.
            # What is not compared any more, as when its rank is gone, has not become equal.
            equal = fault.equal_step > fault.last_step
            if equal and step - fault.last_step >= self._settings.mismatch_quiet_steps:
                self._faults.remove(fault)
                findings.append(_finding(fault, step, CLOSED))
            elif not fault.chronic and fault.last_step - fault.first_step >= self._settings.chronic_steps:
                fault.chronic = True
                fault.message += f"; still so after {fault.last_step - fault.first_step} steps"
                findings.append(_finding(fault, step, UPDATE))
        return findings


def _belongs(fault: _Fault, tag: str, odd: tuple[int, ...]) -> bool:
    """Return whether a difference that singles out `odd`, or nobody, shows a fault of the same group.

    What singles out a rank is a fault of its own beside one that does not, unless it is the same number.
    """
    if odd and fault.singled_out:
        return not set(odd).isdisjoint(fault.ranks)
    return tag in fault.tags or not (odd or fault.singled_out)


def _clusters(values: Float64Array, tolerance: float) -> list[list[int]]:
    """Return the places of equal values together, in ascending order of the value."""
    clusters: list[list[int]] = []
    for place in np.argsort(values, kind="stable").tolist():
        if clusters:
            first = values[clusters[-1][0]]
            if values[place] - first <= tolerance * max(abs(values[place]), abs(first)):
                clusters[-1].append(place)
                continue
        clusters.append([place])
    return clusters


def _sentence(  # noqa: PLR0917
    tag: str,
    since: str,
    group: tuple[int, ...],
    odd: tuple[int, ...],
    values: Float64Array,
    clusters: list[list[int]],
    *,
    unseeded: bool,
) -> str:
    if unseeded:
        return (
            f"all {len(group)} replicas have different parameters {since}: their initialisation "
            f"is not seeded; set the same seed on all ranks (mindspore.set_seed) or load one checkpoint on all of them"
        )
    if odd:
        own = [float(values[group.index(rank)]) for rank in odd]
        others, *distinct = apart([float(values[clusters[0][0]]), *sorted(set(own))[:_MOST_SHOWN]])
        what = "parameters differ" if tag.startswith(_FINGERPRINT) else f"{tag} is {' or '.join(distinct)}"
        against = (
            f"from the other {len(clusters[0])} replicas, which agree,"
            if tag.startswith(_FINGERPRINT)
            else f"and {others} on the other {len(clusters[0])} replicas"
        )
        return f"{name_ranks(odd)}: {what} {against} {since}"
    return (
        f"{name_ranks(group)}: {tag} must be equal and takes {len(clusters)} values {since}; "
        "there is no majority, so the numbers cannot single out a rank"
    )


def _finding(fault: _Fault, step: int, status: str) -> Finding:
    message = fault.message
    if status == CLOSED:
        message = (
            f"{name_ranks(fault.ranks or fault.group)}: {fault.tag} equal again after step {fault.last_step}"
        )
    return Finding(
        kind="mismatch",
        ranks=fault.ranks,
        tag=fault.tag,
        first_step=fault.first_step,
        step=step,
        persistence=GLOBAL if not fault.ranks else CHRONIC if fault.chronic else TRANSIENT,
        score=fault.score,
        evidence={**fault.evidence, "tags": sorted(fault.tags)},
        message=message,
        status=status,
        id=finding_id("mismatch", fault.tag, fault.first_step, fault.ranks or fault.group),
    )
