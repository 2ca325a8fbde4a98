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

from rankside.summary import field
from rankside.summary_layout import fields
from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankside.recorder import Recorder
    from rankside.training.collector import Draft, Training

logger = logging.getLogger("crossrank")

# Converting runs at some thousand nodes a second beside the training, and TensorBoard does not draw more.
LIMIT_BYTES = 32 << 20

# Field numbers of MindSpore's anf_ir.proto and of TensorBoard's event.proto and graph.proto.
_GRAPH = 4
_NODE, _PARAMETER = 1, 3
_EVENT_GRAPH_DEF = 4
_GRAPH_DEF_NODE, _GRAPH_DEF_VERSIONS = 1, 4

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


def graph_event(model: bytes) -> Iterator[bytes]:
    """Yield a serialized Event that holds the graph as a GraphDef, after an empty piece for each node on the way.

    model: serialized ModelProto. A node's name is its scope and its number, a parameter's its own name.

    Nodes are taken out of the model one by one: as a whole, it keeps a Python that parses it busy for a second and
    more for each MiB.
    """
    from mindspore.train.anf_ir_pb2 import NodeProto, ParameterProto  # noqa: PLC0415 (background thread)
    from tensorboard.compat.proto.node_def_pb2 import NodeDef  # noqa: PLC0415
    from tensorboard.compat.proto.versions_pb2 import VersionDef  # noqa: PLC0415

    names: dict[str, str] = {}
    definitions: list[tuple[Any, list[str]]] = []
    for number, data in _members(model):
        if number == _PARAMETER:
            parameter = ParameterProto.FromString(data)
            names[parameter.name] = name = _valid(parameter.name.replace(".", "/"))
            definitions.append((_described(NodeDef(name=name, op="Parameter"), parameter.type), []))
        else:
            node = NodeProto.FromString(data)
            names[node.name] = name = _valid(node.full_name or f"{node.scope}/{node.op_type}-op{node.name}")
            definition = _described(NodeDef(name=name, op=node.op_type), node.output_type)
            definitions.append((definition, [edge.name for edge in node.input]))
        yield b""
    graph = bytearray()
    for definition, sources in definitions:
        definition.input.extend(names[source] for source in sources if source in names)
        graph += field(_GRAPH_DEF_NODE, definition.SerializeToString())
        yield b""
    graph += field(_GRAPH_DEF_VERSIONS, VersionDef(producer=22).SerializeToString())
    yield field(_EVENT_GRAPH_DEF, bytes(graph))


def _members(model: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the serialized nodes and parameters of a ModelProto's graph, with their field numbers."""
    for number, _, start, end in fields(model, 0, len(model)):
        if number == _GRAPH:
            for member, _, begin, stop in fields(model, start, end):
                if member in (_NODE, _PARAMETER):
                    yield member, model[begin:stop]


def _described(definition: Any, kind: Any) -> Any:
    shapes = definition.attr["_output_shapes"].list
    for shape in _shapes(kind):
        shapes.shape.add().dim.extend(_dimensions(shape))
    return definition


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
