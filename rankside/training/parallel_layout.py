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
    if not _is_sliced():
        return {}
    sizes = _mindformers_sizes()
    if sizes:
        replicas = world_size // max(1, sizes["tp"] * sizes["pp"] * sizes["cp"])
        return coordinates(rank, {**sizes, "dp": max(1, replicas)})
    return {"pp": _stage(rank, world_size)} if _stages() > 1 else {}


def returns_loss(rank: int, world_size: int) -> bool:
    """Whether what this rank's train cell returns is a loss.

    Of pipeline stages, only the last one's is, and only the first one's where that stage also ends the model.
    """
    if _stages() == 1:
        return True
    there_and_back = ms.get_auto_parallel_context("pipeline_scheduler") == "zero_bubble_v"
    return _stage(rank, world_size) == (0 if there_and_back else _stages() - 1)


def sample_share(world_size: int) -> float:
    """Return how much of the batch at hand counts as this rank's, so that all ranks' parts add up to the job's samples.

    All of it where each rank has data of its own. Where the parallel layout slices batches, several ranks are
    handed the same samples, or all ranks all of them (`full_batch`), as the dataset strategy says.
    """
    if not _is_sliced():
        return 1.0
    if ms.get_auto_parallel_context("full_batch"):
        return 1.0 / world_size
    strategy = ms.get_auto_parallel_context("dataset_strategy")
    whole = isinstance(strategy, str) or not strategy  # "data_parallel", which a reset empties
    return (world_size // _stages() if whole else strategy[0][0]) / world_size


def _is_sliced() -> bool:
    """Whether tensors, and with them batches, may be sliced over ranks."""
    mode = ms.get_auto_parallel_context("parallel_mode")
    return mode not in (ms.ParallelMode.DATA_PARALLEL, ms.ParallelMode.STAND_ALONE)


def _stages() -> int:
    return int(ms.get_auto_parallel_context("pipeline_stages"))


def _stage(rank: int, world_size: int) -> int:
    return rank // max(1, world_size // _stages())


def _mindformers_sizes() -> dict[str, int]:
    """Return the sizes that mindformers was configured with; empty where it is not in use."""
    module = sys.modules.get("mindformers.core.context.build_context")
    if module is None or not module.Context.is_exists():
        return {}
    config: Any = module.Context().config.get("parallel_config") or {}
    if not isinstance(config, dict):
        config = config.to_dict()
    return {name: int(config.get(theirs) or 1) for name, theirs in _MINDFORMERS.items()}
