"""A rank that saves a checkpoint says so, and what saves is left as it was."""

from __future__ import annotations

import mindspore
import pytest
from mindspore import nn
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint, serialization
from small_training import network, samples

from rankside import RankMonitor, Recorder

pytestmark = pytest.mark.usefixtures("run_dir", "graph_mode")


@pytest.fixture
def said(monkeypatch):
    """The phases that the rank goes through."""
    phases = []
    phase = Recorder.phase

    def note(recorder, name):
        phases.append(name)
        phase(recorder, name)

    monkeypatch.setattr(Recorder, "phase", note)
    return phases


def _train(*callbacks, steps=4):
    net = network()
    monitor = RankMonitor(log_every=0)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    try:
        model.train(1, samples(steps), callbacks=[monitor, *callbacks])
    finally:
        monitor.close()


def _around(said, name):
    return [(said[i - 1], said[i + 1]) for i, phase in enumerate(said) if phase == name]


def test_each_checkpoint_of_modelcheckpoint_is_a_phase_of_its_own_the_last_one_included(said, tmp_path):
    saves = ModelCheckpoint(
        directory=str(tmp_path / "saved"), config=CheckpointConfig(save_checkpoint_steps=3)
    )
    _train(saves)
    assert len(list((tmp_path / "saved").glob("*.ckpt"))) == 2
    callback = ("in a callback", "in a callback")
    assert _around(said, "saving") == [callback, ("idle", "idle")]


def test_a_checkpoint_that_a_callback_of_the_user_saves_is_noticed(said, tmp_path):
    class Saver(Callback):
        def on_train_step_end(self, run_context):
            parameters = run_context.original_args()
            if parameters["cur_step_num"] == 2:
                mindspore.save_checkpoint(parameters["train_network"], str(tmp_path / "own.ckpt"))

    _train(Saver())
    assert len(_around(said, "saving")) == 1
    assert (tmp_path / "own.ckpt").exists()


def test_every_module_has_its_own_function_back_after_training_and_after_a_failure(tmp_path):
    class Fails(Callback):
        def on_train_step_end(self, run_context):  # noqa: ARG002 (the interface)
            assert mindspore.save_checkpoint is not before
            raise OSError("no space left")

    before = serialization.save_checkpoint
    _train()
    with pytest.raises(OSError, match="no space left"):
        _train(Fails())
    assert mindspore.save_checkpoint is before
    assert serialization.save_checkpoint is before


def test_a_checkpoint_that_cannot_be_saved_fails_as_it_would_without_us(said, tmp_path):
    class Saver(Callback):
        def on_train_step_end(self, run_context):  # noqa: ARG002 (the interface)
            mindspore.save_checkpoint(1, str(tmp_path / "own.ckpt"))

    with pytest.raises((TypeError, ValueError), match="save_obj"):
        _train(Saver())
    assert _around(said, "saving")[0] == ("in a callback", "in a callback")
