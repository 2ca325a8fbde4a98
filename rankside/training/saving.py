"""Lets a rank say that it saves a checkpoint, whoever calls for one on the training thread.

MindSpore's and mindformers' functions that save are known under their names in many modules, the user's script
among them. While a training runs, each module that has one gets one that says so before and after it, and does
nothing else; afterwards each gets its own back.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from mindspore.train import serialization

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankside.recorder import Recorder

_NAME = "save_checkpoint"
_MINDFORMERS = "mindformers.checkpoint.checkpoint"


class SavingPhase:
    """Says "saving" to a recorder, between `begin` and `end`; both may be called again."""

    def __init__(self) -> None:
        self._replaced: list[tuple[dict[str, Any], Any, Any]] = []

    def begin(self, recorder: Recorder) -> None:
        """Watch over the functions that save."""
        self.end()
        functions = [serialization.save_checkpoint]
        if _MINDFORMERS in sys.modules:
            functions.append(getattr(sys.modules[_MINDFORMERS], _NAME, None))
        thread = threading.get_ident()
        for function in filter(callable, functions):
            told = _told(function, recorder, thread)
            for module in list(sys.modules.values()):
                names = getattr(module, "__dict__", {})
                if names.get(_NAME) is function:
                    names[_NAME] = told
                    self._replaced.append((names, function, told))

    def end(self) -> None:
        """Give every module its own function back."""
        for names, function, told in self._replaced:
            if names.get(_NAME) is told:
                names[_NAME] = function
        self._replaced = []


def _told(function: Callable[..., Any], recorder: Recorder, thread: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def save(*arguments: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return function(*arguments, **options)
        before = recorder.doing
        recorder.phase("saving")
        try:
            return function(*arguments, **options)
        finally:
            recorder.phase(before)

    return save
