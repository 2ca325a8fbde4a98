"""The layout that makes TensorBoard's custom scalars page draw a band, minimum to maximum around the mean, a tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

if TYPE_CHECKING:
    from collections.abc import Iterable


def layout_value(tags: Iterable[str]) -> bytes:
    """Return the serialized Summary.Value with a band chart for each tag, for a run with `<tag>/mean` and so on."""
    category = layout_pb2.Category(title="across ranks", chart=[_band(tag) for tag in tags])
    layout = layout_pb2.Layout(category=[category])
    value = Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME)),
        tensor=TensorProto(
            dtype=DT_STRING, tensor_shape=TensorShapeProto(), string_val=[layout.SerializeToString()]
        ),
    )
    serialized: bytes = value.SerializeToString()
    return serialized


def _band(tag: str) -> layout_pb2.Chart:
    series = layout_pb2.MarginChartContent.Series(value=f"{tag}/mean", lower=f"{tag}/min", upper=f"{tag}/max")
    return layout_pb2.Chart(title=tag, margin=layout_pb2.MarginChartContent(series=[series]))
