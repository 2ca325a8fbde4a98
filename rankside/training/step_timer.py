"""Times the steps of a training and stops it after so many: what `crossrank overhead` measures with.

The timer stands last in the callback list, with the monitor and without it, and reads the clock once a step: an
interval holds everything between two steps' ends, other callbacks included. Nothing is written before the end.
"""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mindspore.train import Callback, Model

from rankside.training.callback import RankMonitor

if TYPE_CHECKING:
    from collections.abc import Callable


class StepTimer(Callback):  # type: ignore[misc]
    """Writes the seconds between the ends of the steps, as a JSON list, to `path` when a training ends.

    limit_steps: how many steps a process trains before it is asked for an orderly stop.
    """

    def __init__(self, path: Path, *, limit_steps: int) -> None:
        super().__init__()
        self._path = path
        self._limit_steps = limit_steps
        self._ends: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:
        """Note the time; ask for the stop at the last step."""
        self._ends.append(perf_counter())
        if len(self._ends) >= self._limit_steps:
            run_context.request_stop()

    def on_train_end(self, run_context: Any) -> None:  # noqa: ARG002 (the interface)
        """Write what was noted so far."""
        seconds = [after - before for before, after in zip(self._ends, self._ends[1:], strict=False)]
        self._path.write_text(json.dumps(seconds))


def attach_timer(folder: str, *, rank: str, limit_steps: int, monitored: bool) -> None:
    """Time every training of this process; without `monitored`, take a script's own RankMonitor out."""
    timer = StepTimer(Path(folder) / f"rank_{rank}.json", limit_steps=limit_steps)
    for name in ("train", "fit"):
        setattr(Model, name, _timed(getattr(Model, name), timer, monitored=monitored))


def _timed(method: Callable[..., Any], timer: StepTimer, *, monitored: bool) -> Callable[..., Any]:
    position = list(inspect.signature(method).parameters).index("callbacks")

    def changed(given: Any) -> list[Any]:
        callbacks = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
        return [*(c for c in callbacks if monitored or not isinstance(c, RankMonitor)), timer]

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        # MindSpore's own wrappers look for callbacks among the keywords: what was a keyword stays one.
        if len(arguments) > position:
            callbacks = changed(arguments[position])
            arguments = (*arguments[:position], callbacks, *arguments[position + 1 :])
        else:
            options["callbacks"] = changed(options.get("callbacks"))
        return method(*arguments, **options)

    return call
