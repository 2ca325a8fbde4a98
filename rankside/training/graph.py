"""Records the network's graph for TensorBoard's Graphs page, from MindSpore's own intermediate representation.

MindSpore keeps the graph that it compiled, as a serialized ModelProto of its `anf_ir.proto`; the training thread
takes it after the first step and the background thread converts it. There is none in PyNative mode.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import mindspore

from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankside.recorder import Recorder
    from rankside.training.collector import Draft, Training

logger = logging.getLogger("crossrank")

# Converting runs at about 20,000 nodes a second beside the training, and TensorBoard does not draw more.
LIMIT_BYTES = 32 << 20

# By recorder, the train cells whose graphs are in its file: each training may have a monitor of its own.
_recorded: WeakKeyDictionary[Recorder, WeakSet[Any]] = WeakKeyDictionary()


class NetworkGraph(Collector):
    """The graph of the train cell, once a run however often it is trained, on rank 0, where it was compiled."""

    name = "network graph"

    def __init__(self) -> None:
        self._training: Training | None = None

    def train_begin(self, training: Training) -> None:
        """Learn what will be compiled."""
        graph_mode = mindspore.get_context("mode") == mindspore.GRAPH_MODE
        known = training.network in _recorded.get(training.recorder, ())
        self._training = training if graph_mode and training.rank == 0 and not known else None

    @property
    def serves(self) -> bool:
        """Whether there will be a graph to take."""
        return self._training is not None

    def step_end(self, draft: Draft) -> None:  # noqa: ARG002 (the interface)
        """Take the graph after the first step."""
        if self._training is None:
            return
        training, self._training = self._training, None
        _recorded.setdefault(training.recorder, WeakSet()).add(training.network)
        # In a dataset sink, what is compiled is a cell around the train cell.
        cell = training.parameters.get("train_network") or training.network
        model = cell.get_func_graph_proto()
        if model and len(model) <= LIMIT_BYTES:
            training.recorder.record_event(partial(graph_event, model))
        elif model:
            logger.warning("the network's graph is not recorded: it takes %d MiB", len(model) >> 20)


def graph_event(model: bytes) -> bytes:
    """Return a serialized Event that holds the graph as a GraphDef.

    model: serialized ModelProto. A node's name is its scope and its number, a parameter's its own name.
    """
    from mindspore.train.anf_ir_pb2 import ModelProto  # noqa: PLC0415 (background thread)
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
    from tensorboard.compat.proto.graph_pb2 import GraphDef  # noqa: PLC0415
    from tensorboard.compat.proto.versions_pb2 import VersionDef  # noqa: PLC0415

    graph = ModelProto.FromString(model).graph
    definition = GraphDef(versions=VersionDef(producer=22))
    names: dict[str, str] = {}
    for parameter in graph.parameters:
        names[parameter.name] = _valid(parameter.name.replace(".", "/"))
    for node in graph.node:
        names[node.name] = _valid(node.full_name or f"{node.scope}/{node.op_type}-op{node.name}")
    for parameter in graph.parameters:
        _add(definition, names[parameter.name], "Parameter", parameter.type)
    for node in graph.node:
        added = _add(definition, names[node.name], node.op_type, node.output_type)
        added.input.extend(names[edge.name] for edge in node.input if edge.name in names)
    return bytes(Event(graph_def=definition.SerializeToString()).SerializeToString())


def _add(definition: Any, name: str, operator: str, kind: Any) -> Any:
    node = definition.node.add(name=name, op=operator)
    shapes = node.attr["_output_shapes"].list
    for shape in _shapes(kind):
        shapes.shape.add().dim.extend(_dimensions(shape))
    return node


def _shapes(kind: Any) -> Iterator[Any]:
    if kind.HasField("tensor_type"):
        yield kind.tensor_type.shape
    elif kind.HasField("sequence_type"):
        for element in kind.sequence_type.elem_types:
            yield from _shapes(element)


def _dimensions(shape: Any) -> Iterator[Any]:
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # noqa: PLC0415

    for dimension in shape.dim:
        yield TensorShapeProto.Dim(size=dimension.size)


def _valid(name: str) -> str:
    """Return a name that TensorBoard takes for a node's: it must not begin with an underscore."""
    return name.lstrip("_") or "node"
