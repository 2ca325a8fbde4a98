"""Of trainings, evaluations and monitors that get in each other's way, one records and every point stands once."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path

import mindspore
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.train import MAE, Callback, Model
from small_training import Witness, curve, network, samples
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from rankside import RankMonitor


def _model(**options):
    net = network()
    return Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9), **options)


class _TrainsAnother(Callback):
    """Trains two steps of a model of its own at every second step, as an adversary does."""

    def __init__(self, monitor_of):
        super().__init__()
        self._model = _model()
        self._monitor_of = monitor_of

    def on_train_step_end(self, run_context):
        if run_context.original_args()["cur_step_num"] % 2 == 0:
            self._model.train(1, samples(2, seed=7), callbacks=[self._monitor_of()])


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("shared", [True, False])
def test_a_training_inside_another_one_is_told_and_leaves_its_curves_alone(run_dir, caplog, shared):
    monitor, witness = RankMonitor(log_every=0, eager_norms_every=1), Witness()
    inner = _TrainsAnother(lambda: monitor if shared else RankMonitor(log_every=0))
    with caplog.at_level(logging.WARNING, "crossrank"):
        _model().train(1, samples(6), callbacks=[monitor, witness, inner])
        _model().train(1, samples(2), callbacks=[monitor, witness])
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert sorted(curve(run_dir, "grad-norm")) == list(range(1, 9))
    assert "while another one of this process runs is not recorded" in caplog.text
    assert monitor.failed == {}


@pytest.mark.parametrize("twice", [True, False])
def test_each_evaluation_of_a_fit_with_two_monitors_is_recorded_once(run_dir, graph_mode, twice):
    first = RankMonitor(log_every=0)
    monitors = [first, first if twice else RankMonitor(log_every=0)]
    metrics = []

    class Metrics(Callback):
        def on_eval_end(self, run_context):
            metrics.append(run_context.original_args()["metrics"]["mae"])

    _model(metrics={"mae": MAE()}).fit(3, samples(4), samples(2), callbacks=[*monitors, Metrics()])
    first.close()
    assert curve(run_dir, "eval/mae") == pytest.approx(dict(zip((4, 8, 12), metrics, strict=True)), rel=1e-6)
    assert min(curve(run_dir, "iteration-time").values()) > 0


@pytest.mark.parametrize("failed", [True, False])
def test_an_evaluation_after_the_end_of_a_training_is_recorded_however_that_ended(
    run_dir, graph_mode, failed
):
    class Bomb(Callback):
        def on_train_step_end(self, run_context):
            if failed and run_context.original_args()["cur_step_num"] == 3:
                raise RuntimeError("boom")

    monitor, model = RankMonitor(log_every=0), _model(metrics={"mae": MAE()})
    if failed:
        with pytest.raises(RuntimeError, match="boom"):
            model.train(1, samples(5), callbacks=[monitor, Bomb()])
    else:
        model.train(1, samples(3), callbacks=[monitor])
        monitor.close()
    result = model.eval(samples(2), callbacks=[monitor])
    monitor.close()
    assert curve(run_dir, "eval/mae") == pytest.approx({3: result["mae"]}, rel=1e-6)


def _pickled(monitor):
    return pickle.loads(pickle.dumps(monitor))  # noqa: S301 (our own)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, _pickled])
def test_a_copy_of_a_monitor_that_trains_is_a_monitor_of_its_own(run_dir, graph_mode, copied):
    copies = []

    class Copies(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 2:
                copies.append(copied(monitor))

    monitor, witness = RankMonitor(log_every=0, every={0: 1, 7: 2}, weights_every=3), Witness()
    _model().train(1, samples(5), callbacks=[monitor, witness, Copies()])
    _model().train(1, samples(5), callbacks=[*copies, witness])
    monitor.close()
    losses = witness.losses
    expected = {step: losses[step] for step in (*range(1, 9), 10)} | {10: (losses[9] + losses[10]) / 2}
    assert curve(run_dir, "loss") == pytest.approx(expected, rel=1e-5)
    assert sorted(curve(run_dir, "weight-norm/0.weight")) == [3, 6, 10]


def test_trainings_with_a_monitor_each_leave_no_descriptor_open(run_dir, graph_mode):
    def train(times):
        for _ in range(times):
            monitor = RankMonitor(log_every=0)
            model.train(1, samples(2), callbacks=[monitor])
        monitor.close()
        return len(list(Path("/proc/self/fd").iterdir()))

    model = _model()
    assert train(1) == train(6)


def test_a_graph_is_recorded_once_however_often_it_is_trained(run_dir, graph_mode, caplog):
    first, second = _model(), _model()
    for _ in range(3):
        for model in (first, second):
            monitor = RankMonitor(log_every=0)
            model.train(1, samples(2), callbacks=[monitor])
    monitor.close()
    (file,) = (run_dir / "rank_0").iterdir()
    events = list(EventFileLoader(str(file)).Load())
    assert sum(event.HasField("graph_def") for event in events) == 2


@pytest.mark.usefixtures("mode")
def test_a_parameter_that_is_logged_is_recorded_as_it_was(run_dir):
    class Own(Callback):
        def on_train_step_end(self, run_context):
            parameter.set_data(Tensor(float(run_context.original_args()["cur_step_num"]), mindspore.float32))
            monitor.log("own", parameter)

    parameter = Parameter(Tensor(0.0, mindspore.float32), name="own")
    monitor = RankMonitor(log_every=0)
    _model().train(1, samples(20), callbacks=[monitor, Own()])
    monitor.close()
    assert curve(run_dir, "own") == {step: float(step) for step in range(1, 21)}


def test_windows_are_those_of_the_first_monitor_of_a_run_and_another_is_told_so(run_dir, graph_mode, caplog):
    model = _model()
    for every in (2, 5):
        monitor = RankMonitor(log_every=0, every=every)
        model.train(1, samples(5), callbacks=[monitor])
    monitor.close()
    for tag in ("loss", "memory"):
        assert sorted(curve(run_dir, tag)) == [1, 2, 4, 6, 8, 10]
    assert caplog.text.count("every=5 is not used") == 1
    assert "every=2" in caplog.text
