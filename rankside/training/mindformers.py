"""Takes over what mindformers' callbacks write to their TensorBoard writer, also where they have none.

In a YAML configuration, a monitor with arguments of its own is an entry like any other callback's:

    callbacks:
      - {type: RankMonitor, auto_register: rank_monitor.RankMonitor}

where `rank_monitor.py` lies in the folder that REGISTER_PATH names, and consists of
`from rankside import RankMonitor`; the other keys are RankMonitor's arguments. Under `crossrank run` no entry is
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankside.tags import Tag, TagKind
from rankside.training.collector import Collector
from rankside.training.tensor_value import later

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankside.training.collector import Training

# What RankMonitor records itself, under the same names.
_OWN = {"loss", "learning-rate", "loss-scale", "grad-norm", "iteration-time", "throughput"}


class MindformersNumbers(Collector):
    """Records what mindformers' callbacks in the same list write: local norms by layer, expert load, and so on.

    They write to RankMonitor in addition to their own writer, if they have one; at its end the training gets
    that back. Where the configuration has no `tensorboard` section, mindformers' monitor of the training's state
    has turned every metric that should go to TensorBoard to its log; it then writes its metrics here in addition.
    Only what needs a switch of that section to be computed at all, such as the expert load, is not there.

    Left out are numbers that RankMonitor records itself, and those that mindformers draws over
    samples instead of steps. All stand at the step that is trained when they are written, since mindformers
    counts a resumed training's steps differently from callback to callback; but what a device has dumped may be
    written steps later, under a count that is behind MindSpore's, and then stands as many steps earlier.
    """

    name = "mindformers' numbers"

    def __init__(self) -> None:
        self._step = 0
        self._training: Training | None = None
        self._given_back: list[tuple[Any, str, Any]] = []
        self._described: set[str] = set()
        self._late: dict[int, dict[str, Any]] = {}

    def train_begin(self, training: Training) -> None:
        """Take the place of the writers."""
        self._training = training
        self._given_back = []
        for callback in training.parameters.get("list_callback") or ():
            if type(callback).__module__.startswith("mindformers.") and hasattr(callback, "tensor_writer"):
                if callback.tensor_writer is None:
                    self._turn_to_tensorboard(callback)
                self._replace(callback, "tensor_writer", _Writer(self, callback.tensor_writer))

    @property
    def serves(self) -> bool:
        """Whether there is a writer of mindformers'."""
        return bool(self._given_back)

    def step_begin(self, step: int) -> None:
        """Note the step at which what is written will stand."""
        self._report_late()
        self._step = step

    def train_end(self) -> None:
        """Give the callbacks their own writers back."""
        self._report_late()
        for callback, name, value in self._given_back:
            setattr(callback, name, value)
        self._given_back = []

    def _turn_to_tensorboard(self, callback: Any) -> None:
        """Let a monitor write the metrics that it puts in its log to TensorBoard, too."""
        for name, formats in list(vars(callback).items()):
            if name.endswith("_format") and isinstance(formats, set) and formats:
                self._replace(callback, name, {*formats, "tensorboard"})

    def _replace(self, callback: Any, name: str, value: Any) -> None:
        self._given_back.append((callback, name, getattr(callback, name)))
        setattr(callback, name, value)

    def _report_late(self) -> None:
        for step, values in self._late.items():
            if self._training is not None:
                self._training.recorder.report(step, values)
        self._late = {}

    def take(self, tag: str, value: Any, count: int | None) -> None:
        """Record what was written, as the writer would name it. count: of its step, by mindformers."""
        if self._training is None or tag in _OWN or tag.endswith(" vs samples"):
            return
        name = tag.replace(" ", "_")
        if name not in self._described:
            self._described.add(name)
            self._training.recorder.describe(Tag(name, TagKind.INFO, "", "written by mindformers"))
        behind = 0 if count is None else self._training.parameters["cur_step_num"] - count
        if behind > 0:
            self._late.setdefault(self._step - behind, {})[name] = later(value)
        else:
            self._training.recorder.log(self._step, {name: later(value)})


class _Writer:
    """What mindformers' callbacks use of a tensorboardX writer, passed on to the writer that was there."""

    def __init__(self, numbers: MindformersNumbers, writer: Any) -> None:
        self._numbers = numbers
        self._writer = writer

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, *more: Any, **options: Any
    ) -> None:
        self._numbers.take(tag, scalar_value, global_step)
        if self._writer is not None:
            self._writer.add_scalar(tag, scalar_value, global_step, *more, **options)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        *more: Any,
        **options: Any,
    ) -> None:
        for tag, value in tag_scalar_dict.items():
            self._numbers.take(f"{main_tag}/{tag}", value, global_step)
        if self._writer is not None:
            self._writer.add_scalars(main_tag, tag_scalar_dict, global_step, *more, **options)

    def __getattr__(self, name: str) -> Any:
        return _write_nothing if self._writer is None else getattr(self._writer, name)


def _write_nothing(*_: Any, **__: Any) -> None:
    """Stand in for a writer's other methods, where there is no writer."""
