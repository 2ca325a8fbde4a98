"""Measures where the time between the ends of two steps goes, on the training thread's clock.

             step ends                                           step is entered   next step ends
    callbacks of step |--- callbacks ---|--- data ---|--- callbacks ---|--- step ------|
                      |----------------- host-time --------------------|
                                        |- data-time-|
                      |--------------------------- iteration-time ---------------------|

A rank's step takes as long as the slowest rank's, since they wait for each other inside it; its data-time and
host-time are its own. A step is entered when the last callback has seen that it begins, wherever the monitor
stands in the list. The end of the callbacks is where MindSpore asks whether it should stop, which it does after
each step; in a dataset sink it does not, and data-time then holds the callbacks as well. Evaluation and
compilation are left out. Times are milliseconds.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from rankside.training.collector import Collector
from rankside.training.parallel_layout import sample_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankside.training.collector import Draft, Training


class Times(Collector):
    """Tags `iteration-time`, `data-time`, `host-time`, `throughput`; of the first step of a training, none.

    Also `token-throughput`, where the model's configuration names a `seq_length`, as mindformers' models do. Of a
    batch that several ranks are handed, each counts its part: all ranks' throughputs add up to the job's.

    entered: called when a step is about to be entered, where `watches_entry`.
    """

    name = "times"

    def __init__(self, *, entered: Callable[[], None]) -> None:
        self._entered = entered
        self._run_context: Any = None
        self._parameters: Any = {}
        self._last_callback: Any = None
        self._samples_of_dataset = 0.0
        self._share = 1.0
        self._sequence_length = 0
        self._forget()

    def _forget(self) -> None:
        self._step_ended: float | None = None
        self._callbacks_ended: float | None = None
        self._step_began: float | None = None
        self._step_entered: float | None = None
        self._excluded = self._excluded_data = 0.0

    @property
    def watches_entry(self) -> bool:
        """Whether this tells the recorder when the step is entered."""
        return self._last_callback is not None

    def train_begin(self, training: Training) -> None:
        """Start afresh, and ask to be told when the callbacks of a step are done."""
        self._forget()
        size = getattr(training.parameters.get("train_dataset"), "get_batch_size", lambda: None)()
        self._samples_of_dataset = float(size or 0)
        self._share = sample_share(training.world_size)
        self._sequence_length = sequence_length(training.network)
        self._parameters = training.parameters
        self._run_context = training.run_context
        asked = self._run_context.get_stop_requested

        def get_stop_requested() -> bool:
            self._callbacks_ended = perf_counter()
            self._excluded_data = 0.0
            training.recorder.phase("fetching data")
            return bool(asked())

        self._run_context.get_stop_requested = get_stop_requested
        self._watch_entry(training)

    def train_end(self) -> None:
        """Give the run context and the last callback their own methods back."""
        if self._run_context is not None:
            vars(self._run_context).pop("get_stop_requested", None)
            self._run_context = None
        if self._last_callback is not None:
            vars(self._last_callback).pop("on_train_step_begin", None)
            self._last_callback = None

    def _watch_entry(self, training: Training) -> None:
        """Ask to be told when the last callback is done with the beginning of a step."""
        callbacks = training.parameters.get("list_callback")
        if not callbacks:
            return
        last = callbacks[-1]
        begin = last.on_train_step_begin

        def on_train_step_begin(run_context: Any) -> None:
            begin(run_context)
            if run_context.original_args() is not training.parameters:  # it serves an inner training, too
                return
            self._entered()
            self._step_entered = perf_counter()
            training.recorder.phase("in the step")

        last.on_train_step_begin = on_train_step_begin
        self._last_callback = last

    def exclude(self, seconds: float) -> None:
        """Leave out time between two steps that was neither data nor callbacks, such as an evaluation."""
        self._excluded += seconds
        self._excluded_data += seconds

    def step_begin(self, step: int) -> None:  # noqa: ARG002 (the interface)
        """Note when the data is there."""
        self._step_began = self._step_entered = perf_counter()

    def step_end(self, draft: Draft) -> None:
        """Add the times of the step that ended."""
        now = perf_counter()
        if self._step_ended is not None and self._step_began is not None and self._step_entered is not None:
            callbacks_ended = self._callbacks_ended or self._step_ended
            iteration = (now - self._step_ended - self._excluded) / draft.steps
            values = draft.values
            values["iteration-time"] = 1e3 * iteration
            data = max(0.0, self._step_began - callbacks_ended - self._excluded_data)
            host = self._step_entered - self._step_ended - self._excluded
            values["data-time"] = 1e3 * data / draft.steps
            values["host-time"] = 1e3 * host / draft.steps
            batch = self._share * (samples_at_hand(self._parameters) or self._samples_of_dataset)
            if batch > 0:
                samples = values["throughput"] = batch / iteration
                if self._sequence_length:
                    values["token-throughput"] = samples * self._sequence_length
        self._step_ended = now
        self._callbacks_ended = None
        self._excluded = self._excluded_data = 0.0


def samples_at_hand(parameters: Any) -> float:
    """Return how many samples the batch at hand has, which may differ from batch to batch; 0 if unknown."""
    batch = parameters.get("train_dataset_element")
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else None
    if first is not None and len(getattr(first, "shape", ())) > 0:
        return float(first.shape[0])
    return 0.0


def sequence_length(network: Any) -> int:
    """Return the number of tokens in a sample, from the configuration of the model in a train cell; 0 if unknown."""
    model = network
    while getattr(model, "network", None) is not None:
        model = model.network
    length = getattr(getattr(model, "config", None), "seq_length", 0)
    return length if isinstance(length, int) else 0
