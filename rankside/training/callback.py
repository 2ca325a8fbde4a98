"""The callback that records what a training does: one word in `Model.train`'s or `Model.fit`'s callback list.

    model.train(10, dataset, callbacks=[RankMonitor(), ...])

Nothing here raises into training or waits for the device, the disk or the network. Put it first in the list:
then the time that other callbacks take counts as theirs, not as the step's. Of two monitors in one list the
second does nothing.

SIGTERM is left alone. A handler in Python would keep a rank alive that waits in a collective, and CPython's
wake-up descriptor is shared with forked processes, so that a data loader's worker that is told to end would take
the rank with it. What a killed rank loses is bounded by the recorder's flush interval.
"""

from __future__ import annotations

import dataclasses
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mindspore.communication import get_group_size, get_rank
from mindspore.train import Callback

from rankside.config import RankConfig
from rankside.errors import ConfigError
from rankside.schedule import Schedule
from rankside.snapshot import snapshot
from rankside.training.collector import Draft, Training
from rankside.training.collector_group import CollectorGroup
from rankside.training.evaluation import evaluation_numbers
from rankside.training.initial_step import initial_step
from rankside.training.line_up import line_up
from rankside.training.options import MonitorOptions
from rankside.training.own_tags import OwnTags
from rankside.training.parallel_layout import read_coordinates
from rankside.training.process_record import process_record
from rankside.training.saving import SavingPhase
from rankside.training.self_watch import SelfWatch
from rankside.training.step_output import read_output
from rankside.training.tensor_value import later
from rankside.training.times import Times

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

    from rankside.training.process_record import ProcessRecord

logger = logging.getLogger("crossrank")

_ANOTHER_RUNS = "a training that begins while another one of this process runs is not recorded"


class RankMonitor(Callback):  # type: ignore[misc]
    """Records this rank's numbers of every training step.

    logdir: folder in which the run's folder is made; `runs` unless given. Not used under `crossrank run`.
    every: steps in a reporting window, or a map from first step to that number: {0: 1, 1000: 10}. The first step
        is a window of its own.
    log_every: steps between two lines on the terminal, on rank 0; 0 for none.
    initial_step: steps trained before this process began, where it cannot be seen: `Model.train`'s
        `initial_epoch` and mindformers' resumed step are.
    gradient_norms: whether to put a probe into the train cell for the gradients' norms.
    eager_norms_every: steps between two records of these norms in PyNative mode, where each of them costs the
        training thread a kernel launch a parameter. In graph mode they are recorded at every step.
    layer_norms_every: steps between two records of the gradient norm of every parameter; 0 for none.
    fingerprint_every: steps between two digests of a part of the parameters, to be compared across replicas;
        0 for none.
    weights_every: steps between two records of every parameter's norm and of how far the step moved it, and of
        the histograms; 0 for none.
    histograms: pattern for the names of the parameters whose histograms are recorded, such as `*.weight`.
    hparams: hyper-parameters of the user, beside those that the training tells by itself.
    graph: whether to record the compiled network's graph, on rank 0.

    Raises `ConfigError` where an argument cannot be used.
    """

    def __init__(
        self,
        *,
        logdir: str | Path | None = None,
        every: int | Mapping[int, int] | None = None,
        log_every: int = 100,
        initial_step: int | None = None,
        gradient_norms: bool = True,
        eager_norms_every: int = 10,
        layer_norms_every: int = 0,
        fingerprint_every: int = 100,
        weights_every: int = 0,
        histograms: str | None = None,
        hparams: Mapping[str, bool | int | float | str] | None = None,
        graph: bool = True,
    ) -> None:
        super().__init__()
        chosen = {
            "log_every": log_every,
            "initial_step": initial_step,
            "gradient_norms": gradient_norms,
            "eager_norms_every": eager_norms_every,
            "layer_norms_every": layer_norms_every,
            "fingerprint_every": fingerprint_every,
            "weights_every": weights_every,
            "histograms": histograms,
            "hparams": {} if hparams is None else hparams,
            "graph": graph,
        }
        options = MonitorOptions(**chosen)  # type: ignore[arg-type]
        self._arguments = {"logdir": logdir, "every": every, **chosen}
        self._warned: set[str] = set()
        self._config = self._config_of({"logdir": logdir, "every": every})
        self._initial_step = options.initial_step
        self._schedule = Schedule(self._config.every)
        self._record: ProcessRecord | None = None
        self._times = Times(entered=self._enter_step)
        self._saving = SavingPhase()
        self._self_watch = SelfWatch()
        self._own_tags = OwnTags()
        self._group = CollectorGroup(
            line_up(options, reports=self._reports, times=self._times, self_watch=self._self_watch)
        )
        self._depth = 0
        self._training = False
        self._begun = False
        self._run_context: Any = None
        self._base = 0
        self._steps_done = 0
        self._step = 0
        self._evaluating = False
        self._evaluation_began = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle this as a new monitor with the same arguments: no training goes along."""
        return _remade, (type(self), self._arguments)

    @property
    def failed(self) -> Mapping[str, str]:
        """What is no longer recorded, and why."""
        return self._group.failed

    def log(self, tag: str, value: Any) -> None:
        """Record a number, or a tensor of one element, of the step that runs or was the last one to run.

        A tag that the monitor would record by itself, such as `loss`, is the script's from then on.
        """
        if self._record is None:
            self._warn_once(
                f"log({tag!r}, ...) is not recorded: no training that this monitor records has begun"
            )
            return
        step = self._step if self._training else self._record.last_step
        self._own_tags.add(tag)
        self._record.recorder.log(step, {tag: later(snapshot(value))})

    def close(self) -> None:
        """Write and deliver everything, and say goodbye, instead of leaving that to the end of the process."""
        self._finish(None)

    def __enter__(self) -> Self:
        """Enter a training, or the evaluation inside one."""
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None = None, error: BaseException | None = None, *traceback: object
    ) -> None:
        """Leave a training or an evaluation; an exception is what ended it, and passes on."""
        self._depth -= 1
        if self._depth > 0:
            return
        self._end_training()
        # Only here, since other callbacks save their last checkpoint after this one's `on_train_end`.
        self._guard("saving", self._saving.end)
        if kind is not None and self._record is not None:
            self._guard("goodbye", self._finish, f"{kind.__name__}: {error}")

    def on_train_begin(self, run_context: Any) -> None:
        """Find out whether this monitor is the one to record this training."""
        if self._training and self._depth > 1:
            if not self._records(run_context):
                self._warn_once(_ANOTHER_RUNS)
            return
        first = self._is_first(run_context)
        self._begun = False
        self._run_context = run_context
        self._training = first and self._config.active
        if not first:
            self._warn_once("two RankMonitors are in the callback list; only the first one records")

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Begin to record, at the first epoch: only here it is known how many epochs were trained before."""
        if not self._records(run_context):
            return
        if not self._begun:
            self._begun = True
            self._guard("start", self._begin_training, run_context.original_args())
        self._phase("fetching data")

    def on_train_step_begin(self, run_context: Any) -> None:
        """Take what only exists before a step runs."""
        if not self._records(run_context):
            return
        began = perf_counter()
        step = self._base + run_context.original_args()["cur_step_num"]
        if step == self._step:  # the same monitor stands in the list twice
            return
        self._step = step
        self._phase("in a callback" if self._times.watches_entry else "in the step")
        self._group.step_begin(self._step)
        self._self_watch.spent(perf_counter() - began)
        if not self._times.watches_entry:
            self._enter_step()

    def on_train_step_end(self, run_context: Any) -> None:
        """Put together the report of the step, or of the steps of one dataset sink."""
        if not self._records(run_context) or self._record is None:
            return
        began = perf_counter()
        parameters = run_context.original_args()
        steps_done = parameters["cur_step_num"]
        if steps_done == self._steps_done:
            return
        step = self._base + steps_done
        draft = Draft(
            step=step,
            steps=max(1, steps_done - self._steps_done),
            reports=self._reports(step),
            output=read_output(parameters.get("net_outputs")),
        )
        self._group.step_end(draft)
        self._own_tags.clear_way(draft)
        self._phase("in a callback")
        self._record.recorder.hand_over(step, draft.values, draft.deferred)
        self._step = self._record.last_step = step
        self._steps_done = steps_done
        self._stop_where_wanted(run_context)
        self._self_watch.spent(perf_counter() - began)

    def on_train_end(self, run_context: Any) -> None:
        """Give the train cell back as it was, and have everything written soon."""
        if self._records(run_context):
            self._end_training()

    def on_eval_begin(self, run_context: Any) -> None:
        """Note that the rank is busy with something else."""
        self._evaluating = self._is_first(run_context)
        self._evaluation_began = perf_counter()
        self._phase("evaluating")

    def on_eval_end(self, run_context: Any) -> None:
        """Record what the evaluation returned, at the step that training has reached."""
        if not self._evaluating:  # another monitor of the list records, or this one stands in it twice
            return
        self._evaluating = False
        self._times.exclude(perf_counter() - self._evaluation_began)
        if self._config.active:
            self._guard("evaluation metrics", self._record_evaluation, run_context.original_args())
        self._phase("in a callback" if self._training else "idle")

    def _begin_training(self, parameters: Any) -> None:
        record = process_record(self._own_config())
        if record.in_training:
            self._training = False
            self._warn_once(_ANOTHER_RUNS)
            return
        self._record = record
        if record.every != self._config.every:
            self._warn_once(
                f"every={self._config.every!r} is not used: an earlier monitor of this process has begun the run "
                f"with every={record.every!r}"
            )
            self._schedule = Schedule(record.every)
        record.in_training = self._depth > 0  # else nobody would say how it ended
        known = initial_step(parameters) if self._initial_step is None else self._initial_step
        self._steps_done = int(parameters.get("cur_step_num", 0))
        self._base = self._record.begin(known, counted=self._steps_done)
        self._step = self._record.last_step
        self._guard("saving", self._saving.begin, self._record.recorder)
        network = parameters.get("train_network")
        optimizer = parameters.get("optimizer") or getattr(network, "optimizer", None)
        self._group.train_begin(
            Training(
                parameters=parameters,
                run_context=self._run_context,
                network=network,
                optimizer=optimizer,
                # Of the train cell's own parameters, the optimizer's state counts as trainable, too.
                weights=list(getattr(optimizer, "parameters", None) or network.trainable_params()),
                recorder=self._record.recorder,
                rank=self._config.rank,
                world_size=self._config.world_size,
                base=self._base,
                counted=self._steps_done,
            )
        )

    def _enter_step(self) -> None:
        began = perf_counter()
        self._group.step_entered(self._step)
        self._self_watch.spent(perf_counter() - began)

    def _is_first(self, run_context: Any) -> bool:
        callbacks = run_context.original_args().get("list_callback") or ()
        return next((c for c in callbacks if isinstance(c, RankMonitor)), self) is self

    def _records(self, run_context: Any) -> bool:
        """Whether this is the training that is recorded, not one that a callback of it runs."""
        return self._training and run_context.original_args() is self._run_context.original_args()

    def _finish(self, reason: str | None) -> None:
        if self._record is not None:
            self._record.finish(reason)

    def _end_training(self) -> None:
        if not self._training:
            return
        self._phase("idle")
        self._training = False
        self._group.train_end()
        if self._record is not None:
            self._record.in_training = False
            self._record.recorder.flush()

    def _record_evaluation(self, parameters: Any) -> None:
        if self._record is None or not self._record.started:
            self._record = process_record(self._own_config())
            self._record.begin(self._initial_step or 0)
        numbers, others = evaluation_numbers(parameters)
        for name in others:
            self._warn_once(f"the evaluation metric {name} is not one number and is not recorded")
        self._record.recorder.report(self._record.last_step, numbers)

    def _config_of(self, arguments: Mapping[str, Any]) -> RankConfig:
        given = {name: value for name, value in arguments.items() if value is not None}
        alone = RankConfig(active=False, **given)  # refuses the user's own arguments
        try:
            return RankConfig.from_environment(**given)
        except ConfigError as error:  # of the environment, which must not end the training
            self._warn_once(
                f"nothing is recorded, since the environment (RANK_ID, RANK_SIZE, ...) cannot be right: {error}"
            )
            return alone

    def _own_config(self) -> RankConfig:
        # Without msrun, as under mpirun, only the communication group knows the rank; a process without
        # communication is rank 0 of 1.
        if self._config.world_size == 1:
            try:
                rank, world_size = get_rank(), get_group_size()
            except (RuntimeError, ValueError, TypeError):
                rank, world_size = 0, 1
            if world_size > 1:
                self._config = dataclasses.replace(self._config, rank=rank, world_size=world_size)
        if not self._config.coordinates:
            self._guard("reading the parallel layout", self._find_place)
        return self._config

    def _find_place(self) -> None:
        place = read_coordinates(self._config.rank, self._config.world_size)
        self._config = dataclasses.replace(self._config, coordinates=place)

    def _stop_where_wanted(self, run_context: Any) -> None:
        """Ask for an orderly stop where the user has let the aggregator decide on it."""
        reason = self._record.recorder.stop_wanted if self._record is not None else ""
        if reason:
            self._warn_once(f"training is asked to stop: {reason}")
            run_context.request_stop()

    def _reports(self, step: int) -> bool:
        if self._schedule.every_step:
            return True
        if self._record is not None:
            self._schedule.dense_until = self._record.recorder.dense_until
        # Before the first step of all none was recorded: that one is a window of its own.
        return self._schedule.ends_window(step, (self._base + self._steps_done) or -1)

    def _phase(self, name: str) -> None:
        if self._record is not None:
            self._record.recorder.phase(name)

    def _guard(self, what: str, action: Any, *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001 (nothing of ours raises into training)
            self._warn_once(f"{what} failed with {type(error).__name__}: {error}; training goes on")

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)


def _remade(kind: type[RankMonitor], arguments: Mapping[str, Any]) -> RankMonitor:
    monitor = kind.__new__(kind)
    RankMonitor.__init__(monitor, **arguments)  # a subclass may take other arguments
    return monitor
