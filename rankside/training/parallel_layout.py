"""Reads this rank's place in the parallel layout from mindformers' configuration or MindSpore's context."""

from __future__ import annotations

import sys
from typing import Any

import mindspore as ms

from rankside.layout import coordinates

# Names of mindformers' parallel_config by ours.
_MINDFORMERS = {
    "dp": "data_parallel",
    "tp": "model_parallel",
    "pp": "pipeline_stage",
    "cp": "context_parallel",
    "ep": "expert_parallel",
}


def read_coordinates(rank: int, world_size: int) -> dict[str, int]:
    """Return the rank's coordinates, such as {"dp": 1, "pp": 0}; empty where all ranks are plain replicas.

    Where only the pipeline stages are known, only the stage is told. Raises nothing of its own.
    """
    if ms.get_auto_parallel_context("parallel_mode") in (
        ms.ParallelMode.DATA_PARALLEL,
        ms.ParallelMode.STAND_ALONE,
    ):
        return {}
    sizes = _mindformers_sizes()
    if sizes:
        replicas = world_size // max(1, sizes["tp"] * sizes["pp"] * sizes["cp"])
        return coordinates(rank, {**sizes, "dp": max(1, replicas)})
    stages = int(ms.get_auto_parallel_context("pipeline_stages"))
    if stages > 1:
        return {"pp": rank // max(1, world_size // stages)}
    return {}


def _mindformers_sizes() -> dict[str, int]:
    """Return the sizes that mindformers was configured with; empty where it is not in use."""
    module = sys.modules.get("mindformers.core.context.build_context")
    if module is None or not module.Context.is_exists():
        return {}
    config: Any = module.Context().config.get("parallel_config") or {}
    if not isinstance(config, dict):
        config = config.to_dict()
    return {name: int(config.get(theirs) or 1) for name, theirs in _MINDFORMERS.items()}
