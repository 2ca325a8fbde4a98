"""The merged event files: what they show, and that nothing a full disk takes away is passed over in silence."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from aggregator.detect.finding import Finding
from aggregator.merge import merge
from aggregator.sinks.group import SinkGroup
from aggregator.sinks.merged_runs import MergedRuns
from aggregator.sinks.sink import ClosedStep
from aggregator.step import StepMatrix
from rankside import window
from rankside.tags import Tag


def closed_step(step, tags):
    matrix = StepMatrix(step, tags, np.arange(len(tags)), window.single(np.ones((2, len(tags)))), 1.0)
    return ClosedStep(matrix, merge(matrix), ())


def test_no_flush_counts_as_complete_once_steps_were_dropped_on_a_full_disk(tmp_path, monkeypatch):
    tags = [Tag(f"tag{i}") for i in range(1000)]
    runs, sinks = MergedRuns(tmp_path), SinkGroup()
    sinks.add("merged runs", steps=runs)
    sinks.write(closed_step(1, tags))
    assert sinks.flush()

    def full(descriptor, data):
        del data  # as a system call, keep no hold on the buffer
        raise OSError(errno.ENOSPC, "No space left on device")

    step = 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        while not runs._honest.lost_events:
            step += 1
            sinks.write(closed_step(step, tags))
        assert not sinks.flush()
    assert not sinks.flush()
    assert sinks.failures["merged runs"] == 2
    with pytest.raises(OSError, match="dropped while the disk was full"):
        runs.flush()
    sinks.close()


def test_a_finding_stands_on_the_text_page_and_derived_numbers_among_the_merged_scalars(tmp_path):
    runs = MergedRuns(tmp_path)
    runs.write(closed_step(1, [Tag("loss")])._replace(derived=((Tag("gradient-noise-scale"), 2.5),)))
    runs.announce(
        Finding(
            kind="outlier",
            ranks=(3,),
            tag="loss",
            first_step=1,
            step=1,
            persistence="chronic",
            score=7.0,
            evidence={"a|b": 1},
            message="rank 3: loss has moved",
        )
    )
    runs.close()
    shown = EventAccumulator(str(tmp_path), {"scalars": 0, "tensors": 0})
    shown.Reload()
    assert [event.value for event in shown.Scalars("gradient-noise-scale")] == [2.5]
    (event,) = shown.Tensors("findings/outlier")
    text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
    assert "rank 3: loss has moved" in text
    assert r"| a\|b | 1 |" in text
