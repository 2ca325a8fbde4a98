"""Of trainings, evaluations and monitors that get in each other's way, one records and every point stands once."""

from __future__ import annotations

import logging

import pytest
from mindspore import nn
from mindspore.train import MAE, Callback, Model
from small_training import Witness, curve, network, samples

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
