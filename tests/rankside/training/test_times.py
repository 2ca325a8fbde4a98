"""Where the time between two steps goes, on a clock that only the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mindspore.train import Callback, RunContext

from rankside.training import times
from rankside.training.collector import Draft, Training
from rankside.training.step_output import StepOutput


class Phases:
    """Takes the place of a recorder; the times collector only tells it phases."""

    def __init__(self):
        self.said = []

    def phase(self, name):
        self.said.append(name)


class Clocked:
    """A training whose parts take as long as the test says, in seconds."""

    def __init__(self, monkeypatch, *, batch=None, network=None):
        self.now = 100.0
        monkeypatch.setattr(times, "perf_counter", lambda: self.now)
        self.last_callback = Callback()
        self.parameters = {"train_dataset_element": batch, "list_callback": [self.last_callback]}
        self.context = RunContext(self.parameters)
        self.recorder = Phases()
        self.collector = times.Times(entered=lambda: None)
        self.collector.train_begin(
            Training(
                parameters=self.parameters,
                run_context=self.context,
                network=network,
                optimizer=None,
                weights=[],
                recorder=self.recorder,
                rank=0,
                world_size=1,
                base=0,
                counted=0,
            )
        )
        self.at = 0

    def step(self, *, data=0.0, begin=0.0, inside=0.0, callbacks=0.0, evaluating=0.0, steps=1, asks=True):
        """Run one step, or one dataset sink of so many steps, and return what it reported."""
        self.now += data
        self.collector.step_begin(self.at + 1)
        self.now += begin
        self.last_callback.on_train_step_begin(self.context)
        self.now += inside
        self.at += steps
        draft = Draft(step=self.at, steps=steps, reports=True, output=StepOutput())
        self.collector.step_end(draft)
        self.now += callbacks
        if asks:
            assert self.context.get_stop_requested() is False
        if evaluating:
            self.now += evaluating
            self.collector.exclude(evaluating)
        return draft.values


def test_the_first_step_has_no_times(monkeypatch):
    assert Clocked(monkeypatch).step(data=1.0, inside=60.0) == {}


def test_data_callbacks_and_step_add_up_to_the_iteration(monkeypatch):
    training = Clocked(monkeypatch)
    training.step(callbacks=0.003)
    values = training.step(data=0.005, inside=0.020)
    assert values == pytest.approx({"iteration-time": 28.0, "data-time": 5.0, "host-time": 8.0})


def test_what_other_callbacks_do_at_the_beginning_of_a_step_is_the_ranks_own_time(monkeypatch):
    training = Clocked(monkeypatch)
    training.step()
    values = training.step(data=0.005, begin=0.006, inside=0.020)
    assert values == pytest.approx({"iteration-time": 31.0, "data-time": 5.0, "host-time": 11.0})


def test_an_evaluation_between_two_steps_is_nobodys_time(monkeypatch):
    training = Clocked(monkeypatch)
    training.step(callbacks=0.003, evaluating=7.0)
    values = training.step(data=0.005, inside=0.020)
    assert values == pytest.approx({"iteration-time": 28.0, "data-time": 5.0, "host-time": 8.0})


def test_the_times_of_a_dataset_sink_are_those_of_one_of_its_steps(monkeypatch):
    training = Clocked(monkeypatch)
    training.step(steps=10, asks=False)
    values = training.step(data=0.05, inside=0.95, steps=10, asks=False)
    assert values == pytest.approx({"iteration-time": 100.0, "data-time": 5.0, "host-time": 5.0})


def test_throughput_counts_this_ranks_samples(monkeypatch):
    class Batch:
        shape = (32, 4)

    training = Clocked(monkeypatch, batch=(Batch(), Batch()))
    training.step()
    assert training.step(inside=0.5)["throughput"] == pytest.approx(64.0)


def test_throughput_is_of_the_batch_at_hand_where_an_epoch_ends_with_a_smaller_one(monkeypatch):
    training = Clocked(monkeypatch)
    throughput = []
    for size in (8, 8, 2, 8, 2):
        training.parameters["train_dataset_element"] = (SimpleNamespace(shape=(size, 4)),)
        throughput.append(training.step(inside=0.5).get("throughput"))
    assert throughput == [None, *(pytest.approx(2.0 * size) for size in (8, 2, 8, 2))]


def test_tokens_are_counted_where_the_model_knows_the_length_of_its_samples(monkeypatch):
    model = SimpleNamespace(config=SimpleNamespace(seq_length=2048))
    cell = SimpleNamespace(network=SimpleNamespace(network=model))
    batch = (SimpleNamespace(shape=(4, 2049)),)
    training = Clocked(monkeypatch, batch=batch, network=cell)
    training.step()
    values = training.step(inside=0.5)
    assert values["throughput"] == pytest.approx(8.0)
    assert values["token-throughput"] == pytest.approx(16384.0)


def test_the_rank_is_said_to_fetch_data_once_the_callbacks_are_done(monkeypatch):
    training = Clocked(monkeypatch)
    training.step()
    assert training.recorder.said == ["in the step", "fetching data"]


def test_a_step_is_entered_once_the_last_callback_has_seen_it_begin(monkeypatch):
    training = Clocked(monkeypatch)
    training.collector.step_begin(1)
    assert training.recorder.said == []
    training.last_callback.on_train_step_begin(training.context)
    assert training.recorder.said == ["in the step"]


def test_run_context_and_callback_get_their_own_methods_back_and_training_still_stops(monkeypatch):
    training = Clocked(monkeypatch)
    training.context.request_stop()
    assert training.context.get_stop_requested() is True
    training.collector.train_end()
    assert "get_stop_requested" not in vars(training.context)
    assert "on_train_step_begin" not in vars(training.last_callback)
    assert training.context.get_stop_requested() is True
