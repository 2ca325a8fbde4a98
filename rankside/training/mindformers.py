"""Takes over what mindformers' callbacks write to their TensorBoard writer, and makes RankMonitor known to YAML.

In a YAML configuration, without a line of code:

    callbacks:
      - {type: RankMonitor, auto_register: rank_monitor.RankMonitor}

where `rank_monitor.py` lies in the folder that REGISTER_PATH names, and consists of
`from rankside import RankMonitor`; the other keys are RankMonitor's arguments. A script that calls `register`
before mindformers reads its configuration needs no `auto_register`.
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


def register() -> None:
    """Make `type: RankMonitor` known to mindformers; needs mindformers."""
    from mindformers.tools.register import MindFormerModuleType, MindFormerRegister  # noqa: PLC0415

    from rankside.training.callback import RankMonitor  # noqa: PLC0415 (it imports this module)

    MindFormerRegister.register_cls(RankMonitor, MindFormerModuleType.CALLBACK)


class MindformersNumbers(Collector):
    """Records what mindformers' callbacks in the same list write: local norms by layer, expert load, and so on.

    They write to RankMonitor in addition to their own writer, if they have one; at its end the training gets
    that back. Left out are numbers that RankMonitor records itself, and those that mindformers draws over
    samples instead of steps. All stand at the step that is trained when they are written, since mindformers
    counts a resumed training's steps differently from callback to callback. Without a `tensorboard` section in
    their configuration, its monitors of training state do not write to TensorBoard at all.
    """

    name = "mindformers' numbers"

    def __init__(self) -> None:
        self._step = 0
        self._training: Training | None = None
        self._writers: list[tuple[Any, Any]] = []
        self._described: set[str] = set()

    def train_begin(self, training: Training) -> None:
        """Take the place of the writers."""
        self._training = training
        self._writers = []
        for callback in training.parameters.get("list_callback") or ():
            if type(callback).__module__.startswith("mindformers.") and hasattr(callback, "tensor_writer"):
                self._writers.append((callback, callback.tensor_writer))
                callback.tensor_writer = _Writer(self, callback.tensor_writer)

    def step_begin(self, step: int) -> None:
        """Note the step at which what is written will stand."""
        self._step = step

    def train_end(self) -> None:
        """Give the callbacks their own writers back."""
        for callback, writer in self._writers:
            callback.tensor_writer = writer
        self._writers = []

    def take(self, tag: str, value: Any) -> None:
        """Record what was written, as the writer would name it."""
        if self._training is None or tag in _OWN or tag.endswith(" vs samples"):
            return
        name = tag.replace(" ", "_")
        if name not in self._described:
            self._described.add(name)
            self._training.recorder.describe(Tag(name, TagKind.INFO, "", "written by mindformers"))
        self._training.recorder.log(self._step, {name: later(value)})


class _Writer:
    """What mindformers' callbacks use of a tensorboardX writer, passed on to the writer that was there."""

    def __init__(self, numbers: MindformersNumbers, writer: Any) -> None:
        self._numbers = numbers
        self._writer = writer

    def add_scalar(self, tag: str, scalar_value: Any, *arguments: Any, **options: Any) -> None:
        self._numbers.take(tag, scalar_value)
        if self._writer is not None:
            self._writer.add_scalar(tag, scalar_value, *arguments, **options)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], *arguments: Any, **options: Any
    ) -> None:
        for tag, value in tag_scalar_dict.items():
            self._numbers.take(f"{main_tag}/{tag}", value)
        if self._writer is not None:
            self._writer.add_scalars(main_tag, tag_scalar_dict, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
