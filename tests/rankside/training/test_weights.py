"""Weights are shown at their interval: how large, how far a step moved them, how distributed."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, Model
from small_training import curve, network, reader, samples, tags, train_in_sinks

from rankside import RankMonitor


class Weights(Callback):
    """Copies the weights before and after every step."""

    def __init__(self, net):
        super().__init__()
        self._net = net
        self.before, self.after = {}, {}

    def on_train_step_begin(self, run_context):
        self.before[run_context.original_args()["cur_step_num"]] = self._copy()

    def on_train_step_end(self, run_context):
        self.after[run_context.original_args()["cur_step_num"]] = self._copy()

    def _copy(self):
        return {p.name: np.array(p.asnumpy(), np.float64) for p in self._net.trainable_params()}


@pytest.mark.usefixtures("mode")
def test_norms_ratios_and_histograms_are_those_of_the_step(run_dir):
    net = network()
    weights = Weights(net)
    monitor = RankMonitor(log_every=0, weights_every=4, histograms="*.weight")
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    model.train(1, samples(10), callbacks=[monitor, weights])
    monitor.close()
    for name in ("0.weight", "2.bias"):
        norm = {step: np.linalg.norm(weights.after[step][name]) for step in (4, 8)}
        change = {
            step: np.linalg.norm(weights.after[step][name] - weights.before[step][name])
            / np.linalg.norm(weights.before[step][name])
            for step in (4, 8)
        }
        assert curve(run_dir, f"weight-norm/{name}") == pytest.approx(norm, rel=1e-4)
        assert curve(run_dir, f"update-ratio/{name}") == pytest.approx(change, rel=1e-3)
    events = reader(run_dir)
    assert not [tag for tag in events.Tags()["tensors"] if tag == "weight/2.bias"]
    shown = {event.step: event.tensor_proto for event in events.Tensors("weight/0.weight")}
    assert sorted(shown) == [4, 8]
    buckets = np.frombuffer(shown[8].tensor_content, np.float64).reshape(-1, 3)
    left, right, counts = buckets.T
    data = weights.after[8]["0.weight"]
    assert counts.sum() == data.size
    assert [left[0], right[-1]] == pytest.approx([data.min(), data.max()])


def test_nothing_about_weights_is_recorded_unless_asked_for(run_dir, graph_mode):
    net = network()
    monitor = RankMonitor(log_every=0)
    Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1)).train(1, samples(4), callbacks=[monitor])
    monitor.close()
    assert not [tag for tag in tags(run_dir) if tag.startswith(("weight", "update", "local-grad-norm/"))]


def test_in_dataset_sinks_the_interval_is_reached_by_the_sink_that_crosses_it(run_dir, graph_mode):
    net = network()
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
    weights, monitor = Weights(net), RankMonitor(log_every=0, weights_every=3)
    train_in_sinks(cell.set_train(), [monitor, weights], sink_size=4, sinks=3)
    monitor.close()
    expected = {step: np.linalg.norm(weights.after[step]["0.weight"]) for step in (4, 8, 12)}
    assert curve(run_dir, "weight-norm/0.weight") == pytest.approx(expected, rel=1e-5)
    moved = {step: weights.after[step]["0.weight"] - weights.before[step]["0.weight"] for step in expected}
    ratios = {
        step: np.linalg.norm(moved[step]) / np.linalg.norm(weights.before[step]["0.weight"]) for step in moved
    }
    assert curve(run_dir, "update-ratio/0.weight") == pytest.approx(ratios, rel=1e-4)
