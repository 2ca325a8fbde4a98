"""One recorder, and one axis of steps, for all the training that a process does.

MindSpore counts the steps of every `Model.train` call from 1. A second call in the same process goes on where
the one before ended, so that no point is written over another; and a second monitor writes through the same
recorder, since a rank is a process, not a monitor. The goodbye is said when the interpreter exits: after a
training has ended, another may follow.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

from rankside.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankside.config import RankConfig

_records: dict[tuple[object, ...], ProcessRecord] = {}


class ProcessRecord:
    """The recorder of this process and run.

    every: its reporting windows, as in `RankConfig`. last_step: that was trained, 0 before the first.
    started: whether what is logged is recorded.
    in_training: whether a training is being recorded just now; whoever begins and ends one sets it.
    """

    def __init__(self, recorder: Recorder, *, every: int | Mapping[int, int]) -> None:
        self.recorder = recorder
        self.every = every
        self.last_step = 0
        self.started = False
        self.in_training = False

    def begin(self, initial_step: int, *, counted: int = 0) -> int:
        """Begin a training that counts on from `counted`; return what to add to its counts to get the step.

        initial_step: steps trained before count 0. A step that this process has trained is never reached
        again: the numbers go on after the last one.
        """
        base = max(initial_step, self.last_step - counted)
        if not self.started:
            self.recorder.start(initial_step=base + counted)
            self.started = True
        self.last_step = base + counted
        return base

    def finish(self, failed: str | None = None) -> None:
        """Say goodbye; a later `begin` starts again."""
        self.started = False
        self.recorder.finish(failed=failed)


def process_record(config: RankConfig) -> ProcessRecord:
    """Return the record that this process keeps for this rank and run."""
    key = (os.getpid(), config.rank, config.run_dir, config.logdir, config.endpoint)
    if key not in _records:
        _records[key] = record = ProcessRecord(Recorder(config), every=config.every)
        atexit.register(record.finish)
    return _records[key]
