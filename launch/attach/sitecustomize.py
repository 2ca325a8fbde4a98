"""Runs at the start of every Python that `crossrank run` starts: records `Model.train` without a change of the script.

Python imports a module of this name when it starts, if its folder is on PYTHONPATH. This one waits until the
process imports mindspore, and then lets `rankside.training.attach` add the monitor. A sitecustomize of the
user's own is run first, as if this one were not there. Whatever goes wrong here is said in one line and
changes nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_ATTACHED = "CROSSRANK_ATTACHED"  # names the rank that has attached: its own children must not pose as it
# What `crossrank overhead` asks for: a folder for the step times, when to stop, and whether to leave the monitor out.
_TIMES, _LIMIT = "CROSSRANK_STEP_TIMES", "CROSSRANK_STEP_LIMIT"
_UNMONITORED = "CROSSRANK_UNMONITORED"
_LAUNCHER = "msrun"  # imports mindspore as well, and trains nothing


def _run_hidden_sitecustomize() -> None:
    """Run the sitecustomize that Python would have run without this folder."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _AttachingLoader(Loader):
    """Loads mindspore as it would be loaded, then attaches."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if os.path.basename(sys.argv[0]) == _LAUNCHER:
            return
        try:
            from rankside.training.attach import attach

            folder = os.environ.get(_TIMES)
            monitored = os.environ.get(_UNMONITORED) != "1"
            if monitored:
                attach()
            if folder:
                from rankside.training.step_timer import attach_timer

                limit_steps = int(os.environ[_LIMIT])
                attach_timer(folder, rank=_rank(), limit_steps=limit_steps, monitored=monitored)
            os.environ[_ATTACHED] = _rank()
        except Exception as error:  # the training must run, whatever is wrong with us
            print(
                f"crossrank: this process is not recorded: {type(error).__name__}: {error}", file=sys.stderr
            )


class _Finder(MetaPathFinder):
    """Waits for the import of mindspore, and is gone with it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        if name != "mindspore":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _AttachingLoader(spec.loader)
        return spec


def _rank() -> str:
    return os.environ.get("RANK_ID") or os.environ.get("MS_NODE_ID") or os.environ.get("DEVICE_ID") or "0"


if os.environ.get("MS_ROLE") != "MS_SCHED" and os.environ.get(_ATTACHED) != _rank():
    sys.meta_path.insert(0, _Finder())
_run_hidden_sitecustomize()
