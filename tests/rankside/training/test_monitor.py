"""The monitor keeps out of the way: of training, of other callbacks, of processes that are no rank."""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import sys
import textwrap
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import dataset, nn
from mindspore.train import Callback, LossMonitor, Model, ModelCheckpoint, SummaryCollector, TimeMonitor
from small_training import Witness, curve, network, samples, tags

from rankside import ConfigError, RankMonitor
from rankside.training.collector import Collector


def _train(*callbacks, steps=6, data=None):
    net = network()
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    model.train(1, data or samples(steps), callbacks=list(callbacks))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("every", 0),
        ("every", {5: 1}),
        ("log_every", -1),
        ("log_every", 1.5),
        ("layer_norms_every", "10"),
        ("fingerprint_every", -5),
        ("weights_every", None),
        ("initial_step", -1),
        ("gradient_norms", "yes"),
        ("eager_norms_every", 0),
        ("graph", 1),
        ("histograms", 3),
        ("histograms", "*.weight"),
        ("hparams", {"layers": [1, 2]}),
        ("hparams", [1]),
        ("hparams", 0),
        ("hparams", {"": 1}),
        ("hparams", {1: 1}),
        ("logdir", 5),
        ("logdir", ""),
        ("every", 2**70),
        ("every", "2"),
        ("log_every", True),
        ("log_every", 2**70),
        ("initial_step", 2**70),
        ("initial_step", 1.0),
        ("eager_norms_every", np.int64(0)),
        ("weights_every", np.float64(2.0)),
        ("histograms", ""),
    ],
)
def test_a_wrong_argument_is_refused_by_name_when_the_monitor_is_made(option, value):
    with pytest.raises(ConfigError, match=option):
        RankMonitor(**{option: value})


def test_numbers_of_numpy_are_taken_as_pythons(run_dir, graph_mode):
    five = np.int64(5)
    monitor = RankMonitor(
        every=np.int64(2), log_every=np.int32(0), initial_step=five, eager_norms_every=five,
        layer_norms_every=np.int64(0), fingerprint_every=five, weights_every=np.uint8(3),
        hparams={"width": np.int64(8), "rate": np.float32(0.5), "tied": np.equal(1, 1)},
    )  # fmt: skip
    _train(monitor)
    monitor.close()
    assert monitor.failed == {}
    assert sorted(curve(run_dir, "loss")) == [6, 8, 10, 11]
    assert sorted(curve(run_dir, "weight-norm/0.weight")) == [6, 10]


def test_an_environment_that_cannot_be_right_ends_no_training(run_dir, graph_mode, monkeypatch, caplog):
    monkeypatch.setenv("RANK_ID", "5")
    monkeypatch.setenv("RANK_SIZE", "2")
    witness = Witness()
    with caplog.at_level(logging.WARNING, "crossrank"):
        monitor = RankMonitor()
        _train(monitor, witness)
    monitor.close()
    assert len(witness.losses) == 6
    assert not run_dir.exists()
    (line,) = [r.message for r in caplog.records if "nothing is recorded" in r.message]
    assert "RANK_SIZE" in line
    assert "rank=5: a whole number from 0 to 1 is expected" in line
    with pytest.raises(ConfigError, match="logdir"):
        RankMonitor(logdir=5)


def test_importing_the_package_imports_no_mindspore():
    program = "import sys, rankside; rankside.Recorder; assert 'mindspore' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.usefixtures("mode")
def test_mindsporess_own_callbacks_work_beside_it(run_dir, tmp_path):
    witness, monitor = Witness(), RankMonitor(log_every=0)
    _train(
        LossMonitor(2),
        monitor,
        TimeMonitor(),
        ModelCheckpoint(directory=str(tmp_path / "checkpoints")),
        SummaryCollector(
            str(tmp_path / "summary"),
            collect_freq=1,
            collect_specified_data={"collect_dataset_graph": False, "collect_graph": False},
        ),
        witness,
    )
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    checkpoint = next((tmp_path / "checkpoints").glob("*.ckpt"))
    assert not [name for name in mindspore.load_checkpoint(str(checkpoint)) if "crossrank" in name]
    assert list((tmp_path / "summary").glob("*.summary.*"))


def test_the_second_of_two_monitors_does_nothing_and_says_so_once(run_dir, graph_mode, caplog):
    witness, first, second = Witness(), RankMonitor(log_every=0), RankMonitor(log_every=0)
    with caplog.at_level(logging.WARNING, "crossrank"):
        _train(first, second, witness)
    first.close()
    second.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert [r.message for r in caplog.records if "two RankMonitors" in r.message] == [
        "two RankMonitors are in the callback list; only the first one records"
    ]


def test_a_collector_that_fails_is_reported_once_and_the_others_go_on(run_dir, graph_mode, caplog):
    class Broken(Collector):
        name = "broken"

        def step_end(self, draft):
            raise ZeroDivisionError(f"at step {draft.step}")

    witness, monitor = Witness(), RankMonitor(log_every=0)
    monitor._group = type(monitor._group)([Broken(), *monitor._group._collectors])
    with caplog.at_level(logging.WARNING, "crossrank"):
        _train(monitor, witness)
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert monitor.failed == {"broken": "ZeroDivisionError: at step 1"}
    assert len([r for r in caplog.records if "broken is no longer recorded" in r.message]) == 1


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_exception_of_another_callback_passes_and_all_steps_before_it_are_kept(run_dir, graph_mode, where):
    class Bomb(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 4:
                raise RuntimeError("boom")

    monitor = RankMonitor(log_every=0)
    callbacks = (Bomb(), monitor) if where == "before" else (monitor, Bomb())
    with pytest.raises(RuntimeError, match="boom"):
        _train(*callbacks)
    # Nothing was closed by hand: the exception itself had everything written.
    assert sorted(curve(run_dir, "loss")) == list(range(1, 4 if where == "before" else 5))


def test_training_may_go_on_after_an_exception(run_dir, graph_mode):
    class Bomb(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 3:
                raise RuntimeError("boom")

    monitor = RankMonitor(log_every=0)
    with pytest.raises(RuntimeError, match="boom"):
        _train(monitor, Bomb())
    _train(monitor, steps=2)
    monitor.close()
    assert sorted(curve(run_dir, "loss")) == [1, 2, 3, 4, 5]


def test_the_scheduler_process_records_nothing_as_rank_0(run_dir, graph_mode, monkeypatch):
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    monkeypatch.setenv("RANK_ID", "0")
    monitor = RankMonitor(log_every=0)
    _train(monitor)
    monitor.close()
    assert not run_dir.exists()


def test_processes_forked_by_the_data_loader_write_nothing(run_dir, graph_mode):
    def rows():
        for row in range(24):
            yield [float(row)] * 4, [0.0, 1.0]

    data = dataset.GeneratorDataset(
        list(rows()), ["x", "y"], shuffle=False, num_parallel_workers=2, python_multiprocessing=True
    )
    data = data.map(lambda x: x, ["x"], num_parallel_workers=2, python_multiprocessing=True).batch(4)
    data = data.map(lambda a: a.astype("float32"), ["x"]).map(lambda a: a.astype("float32"), ["y"])
    witness, monitor = Witness(), RankMonitor(log_every=0)
    _train(monitor, witness, data=data)
    monitor.close()
    assert curve(run_dir, "loss") == pytest.approx(witness.losses, rel=1e-6)
    assert len(list((run_dir / "rank_0").iterdir())) == 1


def test_a_forked_process_that_logs_and_exits_leaves_the_ranks_file_alone(run_dir, graph_mode):
    class Fork(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 3:
                process = multiprocessing.get_context("fork").Process(target=monitor.log, args=("child", 1.0))
                process.start()
                process.join(30)
                assert process.exitcode == 0

    monitor = RankMonitor(log_every=0)
    _train(monitor, Fork())
    monitor.close()
    assert "child" not in tags(run_dir)
    assert sorted(curve(run_dir, "loss")) == [1, 2, 3, 4, 5, 6]


def test_the_goodbye_is_left_to_the_end_of_the_process(run_dir):
    program = textwrap.dedent(
        """
        import mindspore
        from mindspore import nn
        from mindspore.train import Model
        from small_training import network, samples
        from rankside import RankMonitor
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        monitor = RankMonitor(log_every=2)
        net = network()
        Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1)).train(1, samples(5), callbacks=monitor)
        """
    )
    folder = str(Path(__file__).parent)
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{folder!r}]\n{program}"],
        check=True,
        timeout=100,
        capture_output=True,
        text=True,
    )
    for tag in ("loss", "memory"):
        assert sorted(curve(run_dir, tag)) == [1, 2, 3, 4, 5]
    lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in lines] == ["step 2", "step 4"]
    assert all(f" {word} " in lines[0] for word in ("loss", "lr", "grad norm"))
