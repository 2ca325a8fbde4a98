"""Adds a RankMonitor to every `Model.train`, `Model.fit` and `Model.eval` of a process, with the script unchanged.

Called once, before or after the script imports MindSpore; calling it again changes nothing. A callback list that
has a RankMonitor keeps its own.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from mindspore.train import Model

from rankside.training.callback import RankMonitor

if TYPE_CHECKING:
    from collections.abc import Callable

_METHODS = ("train", "fit", "eval")
_MARK = "__crossrank__"


def attach() -> None:
    """Let every model of this process be recorded."""
    monitor = RankMonitor()
    for name in _METHODS:
        method = getattr(Model, name)
        if not hasattr(method, _MARK):
            setattr(Model, name, _with_monitor(method, monitor))


def _with_monitor(method: Callable[..., Any], monitor: RankMonitor) -> Callable[..., Any]:
    position = list(inspect.signature(method).parameters).index("callbacks")

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        # MindSpore's own wrappers look for callbacks among the keywords: what was a keyword stays one.
        if len(arguments) > position:
            callbacks = _added(arguments[position], monitor)
            arguments = (*arguments[:position], callbacks, *arguments[position + 1 :])
        else:
            options["callbacks"] = _added(options.get("callbacks"), monitor)
        return method(*arguments, **options)

    setattr(call, _MARK, True)
    return call


def _added(callbacks: Any, monitor: RankMonitor) -> list[Any]:
    given = (
        [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    )
    if any(isinstance(callback, RankMonitor) for callback in given):
        return given
    # First, so that the time of the other callbacks counts as theirs.
    return [monitor, *given]
