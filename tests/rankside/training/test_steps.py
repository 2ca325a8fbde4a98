"""A point stands at the step that was trained, and never at another."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import MAE, Callback, Model
from small_training import Witness, curve, network, samples, tags, train_in_sinks

from rankside import RankMonitor


def _model(**options):
    net = network()
    return Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9), **options)


def test_several_trainings_of_one_process_go_on_counting(run_dir, graph_mode):
    witness, monitor, model = Witness(), RankMonitor(log_every=0), _model()
    for _ in range(3):
        model.train(1, samples(4), callbacks=[monitor, witness])
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert sorted(curve(run_dir, "loss")) == list(range(1, 13))


def test_each_training_may_have_a_monitor_of_its_own(run_dir, graph_mode):
    model = _model()
    for _ in range(3):
        monitor = RankMonitor(log_every=0)
        model.train(1, samples(4), callbacks=[monitor])
    monitor.close()
    assert sorted(curve(run_dir, "loss")) == list(range(1, 13))


def test_epochs_skipped_by_initial_epoch_count_as_trained(run_dir, graph_mode):
    monitor = RankMonitor(log_every=0)
    _model().train(4, samples(5), callbacks=[monitor], initial_epoch=2)
    monitor.close()
    assert sorted(curve(run_dir, "loss")) == list(range(11, 21))


def test_a_resumed_step_may_be_given(run_dir, graph_mode):
    monitor = RankMonitor(log_every=0, initial_step=1000)
    _model().train(1, samples(3), callbacks=[monitor])
    monitor.close()
    assert sorted(curve(run_dir, "loss")) == [1001, 1002, 1003]


def test_a_sink_request_that_cpu_falls_back_from_records_every_step(run_dir, graph_mode):
    monitor = RankMonitor(log_every=0)
    _model().train(2, samples(4), callbacks=[monitor], dataset_sink_mode=True, sink_size=2)
    monitor.close()
    steps = sorted(curve(run_dir, "loss"))
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.usefixtures("mode")
def test_fit_records_its_evaluations_at_the_step_that_training_had_reached(run_dir):
    results = {}

    class Notes(Callback):
        def on_eval_end(self, run_context):
            parameters = run_context.original_args()
            results[4 * parameters["cur_epoch_num"]] = (
                parameters["eval_results"]["eval_loss"],
                parameters["metrics"]["mae"],
            )

    monitor = RankMonitor(log_every=0)
    _model(metrics={"mae": MAE()}).fit(
        3, samples(4), samples(2, seed=9), valid_frequency=1, callbacks=[monitor, Notes()]
    )
    monitor.close()
    assert sorted(curve(run_dir, "loss")) == list(range(1, 13))
    assert curve(run_dir, "eval/loss") == pytest.approx({s: r[0] for s, r in results.items()}, rel=1e-5)
    assert curve(run_dir, "eval/mae") == pytest.approx({s: r[1] for s, r in results.items()}, rel=1e-5)
    assert sorted(results) == [4, 8, 12]


def test_an_evaluation_between_trainings_stands_at_the_last_step(run_dir, graph_mode):
    monitor, model = RankMonitor(log_every=0), _model(metrics={"mae": MAE()})
    result = []
    for _ in range(2):
        model.train(1, samples(4), callbacks=[monitor])
        result.append(model.eval(samples(2, seed=9), callbacks=[monitor])["mae"])
    monitor.close()
    assert curve(run_dir, "eval/mae") == pytest.approx({4: result[0], 8: result[1]}, rel=1e-5)


def test_own_scalars_stand_at_the_step_in_which_they_are_logged(run_dir, graph_mode):
    class Own(Callback):
        def on_train_step_begin(self, run_context):
            monitor.log("begin", run_context.original_args()["cur_step_num"])

        def on_train_step_end(self, run_context):
            monitor.log(
                "end", Tensor([10.0 * run_context.original_args()["cur_step_num"]], mindspore.float32)
            )

    monitor = RankMonitor(log_every=0)
    _model().train(1, samples(4), callbacks=[monitor, Own()])
    monitor.close()
    assert curve(run_dir, "begin") == {1: 1, 2: 2, 3: 3, 4: 4}
    assert curve(run_dir, "end") == {1: 10, 2: 20, 3: 30, 4: 40}


def test_windows_are_reduced_and_stand_at_their_last_step(run_dir, graph_mode):
    witness, monitor = Witness(), RankMonitor(log_every=0, every={0: 1, 4: 3})
    _model().train(1, samples(10), callbacks=[monitor, witness])
    monitor.close()
    losses = witness.losses
    expected = {step: losses[step] for step in (1, 2, 3)}
    expected |= {
        last: np.mean([losses[step] for step in range(first, last + 1)])
        for first, last in ((4, 4), (5, 6), (7, 9), (10, 10))
    }
    assert curve(run_dir, "loss") == pytest.approx(expected, rel=1e-5)


def _train_in_sinks(optimizer_of, *, gradient_norms):
    """Train 12 steps in sinks of 4."""
    mindspore.set_seed(1)
    net = nn.Dense(4, 2)
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer_of(net.trainable_params()))
    cell.set_train()
    monitor, alone = (RankMonitor(log_every=0, gradient_norms=gradient_norms) for _ in range(2))
    train_in_sinks(cell, [monitor], sink_size=4, sinks=3)
    monitor.close()
    assert alone.failed == monitor.failed == {}


def test_each_step_of_a_dataset_sink_gets_the_norms_that_were_noted_inside_it(run_dir, graph_mode):
    _train_in_sinks(lambda parameters: nn.SGD(parameters, 0.1), gradient_norms=True)
    norms = curve(run_dir, "grad-norm")
    assert sorted(norms) == list(range(1, 13))
    assert len(set(norms.values())) == 12
    assert sorted(curve(run_dir, "loss")) == [4, 8, 12]
    assert sorted(curve(run_dir, "iteration-time")) == [8, 12]
    assert "overflow" not in tags(run_dir)


@pytest.mark.parametrize(("gradient_norms", "steps"), [(True, range(1, 13)), (False, (4, 8, 12))])
def test_the_rate_of_a_dataset_sink_is_that_of_its_last_step(run_dir, graph_mode, gradient_norms, steps):
    schedule = nn.ExponentialDecayLR(0.5, 0.5, 4)
    _train_in_sinks(lambda parameters: nn.SGD(parameters, schedule), gradient_norms=gradient_norms)
    expected = {step: 0.5 * 0.5 ** ((step - 1) / 4) for step in steps}
    assert curve(run_dir, "learning-rate") == pytest.approx(expected, rel=1e-5)


def test_what_is_logged_after_a_training_stands_at_its_last_step(run_dir, graph_mode):
    monitor = RankMonitor(log_every=0)
    monitor.log("early", 1.0)
    _model().train(1, samples(4), callbacks=[monitor])
    monitor.log("accuracy", 0.5)
    monitor.close()
    assert curve(run_dir, "accuracy") == {4: 0.5}
    assert "early" not in tags(run_dir)


def test_a_monitor_that_stands_in_the_list_twice_records_once(run_dir, graph_mode):
    witness, monitor = Witness(), RankMonitor(log_every=0)
    _model().train(1, samples(6), callbacks=[monitor, monitor, witness])
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert sorted(curve(run_dir, "grad-norm")) == list(range(1, 7))
    assert min(curve(run_dir, "host-time").values()) >= 0
    assert monitor.failed == {}
