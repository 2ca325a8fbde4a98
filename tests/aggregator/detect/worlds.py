"""Worlds that are fed to the detectors step by step."""

from __future__ import annotations

import numpy as np

from aggregator.detect import DetectionSettings, PeerGroups, default_detectors
from aggregator.merge import merge
from aggregator.step import StepMatrix
from rankside.tags import Tag, well_known
from rankside.window import single


class World:
    """Hands columns of values to detectors. tags: names, or tags where the kind matters."""

    def __init__(self, *tags, detector=None, groups=None, settings=None):
        self.tags = [tag if isinstance(tag, Tag) else well_known(tag) for tag in tags]
        self.detector = detector or default_detectors(settings or DetectionSettings(), groups or PeerGroups())
        self.step = 0
        self.findings = []

    def feed(self, *columns, step=None, session_start=False, tag_ids=None):
        """One step: a list of the ranks' values for each tag; returns the findings of the step."""
        self.step = self.step + 1 if step is None else step
        values = np.stack([np.asarray(column, dtype=float) for column in columns], axis=1)
        ids = np.arange(len(columns)) if tag_ids is None else np.array(tag_ids)
        matrix = matrix_of(self.step, self.tags, values, ids, session_start=session_start)
        found = tuple(self.detector.observe(matrix, merge(matrix)))
        self.findings += found
        return found

    def opened(self, kind=None):
        return [each for each in self.findings if each.status == "open" and kind in {None, each.kind}]


def matrix_of(step, tags, values, ids=None, *, session_start=False):
    """A closed step of windows of one value; None in place of NaN is a rank that does not report."""
    return StepMatrix(
        step,
        tags,
        np.arange(values.shape[1]) if ids is None else ids,
        single(values),
        session_start=session_start,
    )


def absent(matrix, rank):
    """The same step without this rank."""
    columns = matrix.columns.copy()
    columns[:, rank] = np.nan
    columns[:2, rank] = 0
    return matrix._replace(columns=columns)


def noisy(rng, ranks, level=1.0, sigma=0.1):
    return level + sigma * rng.normal(size=ranks)
