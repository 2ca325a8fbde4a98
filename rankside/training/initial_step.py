"""Finds out how many steps were trained before the first step of this call of `Model.train`."""

from __future__ import annotations

from typing import Any


def initial_step(parameters: Any) -> int:
    """Return the number of steps trained before, as far as MindSpore or mindformers tell.

    parameters: the callback parameters at the beginning of the first epoch. In order of preference: the
    initial step that MindSpore itself passes on; that of mindformers' own monitor in the callback list, which
    counts from the resumed checkpoint; the epochs skipped by `initial_epoch`.
    """
    told = parameters.get("initial_step")
    if told:
        return int(told)
    for callback in parameters.get("list_callback") or ():
        resumed = getattr(callback, "initial_step", 0)
        if type(callback).__module__.startswith("mindformers.") and isinstance(resumed, int) and resumed > 0:
            return resumed
    skipped_epochs = parameters.get("cur_epoch_num", 1) - 1
    return int(skipped_epochs * parameters.get("batch_num", 0)) if parameters.get("cur_step_num") == 0 else 0
