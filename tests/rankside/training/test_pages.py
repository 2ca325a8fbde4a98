"""TensorBoard's HParams and Graphs pages show the training."""

from __future__ import annotations

import pytest
from mindspore import nn
from mindspore.train import Model
from small_training import network, reader, samples
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.plugins.hparams import metadata

from rankside import RankMonitor


def _train(**options):
    net = network()
    monitor = RankMonitor(log_every=0, **options)
    optimizer = nn.Momentum(net.trainable_params(), 0.25, 0.875)
    Model(net, nn.MSELoss(), optimizer).train(2, samples(3), callbacks=[monitor])
    monitor.close()


@pytest.mark.usefixtures("mode")
def test_hyper_parameters_are_found_and_the_users_own_win(run_dir):
    _train(hparams={"depth": 3, "note": "first try", "epochs": 99})
    plugin = reader(run_dir).summary_metadata["_hparams_/session_start_info"].plugin_data
    session = metadata.parse_session_start_info_plugin_data(plugin.content)
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()}
    assert values["depth"] == 3
    assert values["note"] == "first try"
    assert values["epochs"] == 99
    assert values["optimizer"] == "Momentum"
    assert (values["learning_rate"], values["batch_size"], values["batches_per_epoch"]) == (0.25, 8, 3)


def test_the_compiled_graph_is_one_connected_graph_of_named_operators(run_dir, graph_mode):
    _train()
    graph: GraphDef = GraphDef.FromString(reader(run_dir).Graph().SerializeToString())
    names = {node.name for node in graph.node}
    assert len(names) == len(graph.node)
    assert {source for node in graph.node for source in node.input} <= names
    operators = [node.op for node in graph.node]
    assert operators.count("MatMul") >= 5  # two layers forward, and backward without the input's gradient
    weight = next(node for node in graph.node if node.name == "0/weight")
    assert [d.size for d in weight.attr["_output_shapes"].list.shape[0].dim] == [8, 4]


def test_no_graph_is_recorded_when_it_is_not_wanted(run_dir, graph_mode):
    _train(graph=False)
    assert not reader(run_dir).Tags()["graph"]
