"""The side of crossrank that lives inside a training process.

With MindSpore's `Model.train` or `Model.fit`, one word in the callback list:

    from rankside import RankMonitor
    model.train(10, dataset, callbacks=[RankMonitor()])

In a loop of one's own:

    from rankside import RankConfig, Recorder
    recorder = Recorder(RankConfig.from_environment())

Importing this package imports no MindSpore and reads no environment.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankside.config import RankConfig
    from rankside.errors import ConfigError, CrossrankError
    from rankside.recorder import Recorder
    from rankside.training.callback import RankMonitor

__all__ = ["ConfigError", "CrossrankError", "RankConfig", "RankMonitor", "Recorder"]

_HOMES = {
    "ConfigError": "rankside.errors",
    "CrossrankError": "rankside.errors",
    "RankConfig": "rankside.config",
    "RankMonitor": "rankside.training.callback",
    "Recorder": "rankside.recorder",
}


def __getattr__(name: str) -> Any:
    # Not imported before it is asked for: RankMonitor takes MindSpore with it, which takes seconds.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
