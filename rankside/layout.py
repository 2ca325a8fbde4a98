"""Where a rank stands in a regular parallel layout: pure arithmetic on sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# From the dimension that changes fastest with the rank to the slowest, as MindSpore and mindformers place ranks:
# contiguous pipeline stages, in them data-parallel replicas, in them context and tensor parallelism.
ORDER = ("tp", "cp", "dp", "pp")
DIMENSIONS = (*ORDER, "ep")


def coordinates(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the rank's index in each dimension.

    sizes: of tp, cp, dp, pp and ep; 1 where one is left out. Experts are spread over consecutive ranks of a
    pipeline stage. Raises ValueError for an unknown dimension, a size below 1, an ep that does not divide the
    ranks of a stage, or a rank beyond the layout.
    """
    for name, size in sizes.items():
        if name not in DIMENSIONS:
            raise ValueError(f"{name}: the dimensions of a layout are {', '.join(DIMENSIONS)}")
        if size < 1:
            raise ValueError(f"{name}={size}: the size of a parallel dimension is at least 1")
    place, rest, inside, stage_ranks = {}, rank, 0, 1
    for name in ORDER:
        size = sizes.get(name, 1)
        rest, place[name] = divmod(rest, size)
        if name != "pp":
            inside += place[name] * stage_ranks
            stage_ranks *= size
    if rest:
        raise ValueError(f"rank {rank} does not fit a layout of {_written(sizes)}")
    experts = sizes.get("ep", 1)
    if stage_ranks % experts:
        raise ValueError(f"ep={experts}: it must divide the {stage_ranks} ranks of a pipeline stage")
    return {**place, "ep": inside % experts}


def parse(text: str) -> dict[str, int]:
    """Return the sizes in a text such as "dp=4,tp=2,pp=1"; raise ValueError for anything else."""
    sizes = {}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals or not size.isdecimal():
            raise ValueError(f"{part!r}: sizes are given like dp=4,tp=2,pp=1")
        sizes[name] = int(size)
    coordinates(0, sizes)
    return sizes


def _written(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())
