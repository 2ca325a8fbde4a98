"""Which ranks may be compared with which: peer groups from the coordinates of the parallel layout.

Without coordinates all ranks of the world are data-parallel peers. With them, a rank that has none stands
alone and is compared with nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]

_COORDINATES = ("dp", "tp", "pp", "cp", "ep")
# What two ranks must share for their local values to be comparable, and for their parameters to be replicas.
_LOCAL_KEY = ("pp", "tp", "cp")
_REPLICA_KEY = ("pp", "tp", "ep")


class Grouping(NamedTuple):
    """The ranks of a world, laid out one peer group a row.

    members: shape (G, S), int64: the ranks of each group, ascending; filled up with 0 where `present` is
    false. present: shape (G, S), bool. group_of, slot_of: shape (W,), int64: row and column of each rank.
    """

    members: Int64Array
    present: npt.NDArray[np.bool_]
    group_of: Int64Array
    slot_of: Int64Array

    def gather(self, values: Float64Array) -> Float64Array:
        """Return values of shape (W, T) as (G, S, T), NaN where a group has no such rank."""
        if len(self.members) == 1:
            return values[None]
        grid: Float64Array = values[self.members]
        if not self.present.all():
            grid[~self.present] = np.nan
        return grid

    def scatter(self, grid: Float64Array) -> Float64Array:
        """Return values of shape (G, S, T) as (W, T)."""
        if len(self.members) == 1:
            return np.asarray(grid[0])
        flat: Float64Array = grid[self.group_of, self.slot_of]
        return flat

    def peers_of(self, rank: int) -> tuple[int, ...]:
        """Return the other ranks of the rank's group, ascending."""
        row = self.group_of[rank]
        return tuple(int(peer) for peer in self.members[row][self.present[row]] if peer != rank)


class PeerGroups:
    """The peer groups of a run, for any world size that it grows to."""

    def __init__(self, coordinates: Mapping[int, Mapping[str, int]] | None = None) -> None:
        self._coordinates = None if coordinates is None else {r: dict(c) for r, c in coordinates.items()}
        for rank, place in (self._coordinates or {}).items():
            unknown = sorted(set(place) - set(_COORDINATES))
            if unknown:
                raise ValueError(
                    f"rank {rank}: unknown coordinate {unknown[0]!r}; accepted are {', '.join(_COORDINATES)}"
                )
        self._cache: dict[tuple[int, tuple[str, ...]], Grouping] = {}

    @classmethod
    def from_coordinates(cls, coordinates: Mapping[int, Mapping[str, int]]) -> PeerGroups:
        """Group by coordinates: for each rank any of dp, tp, pp, cp, ep; what is left out is 0.

        Raises ValueError for a coordinate of another name.
        """
        return cls(coordinates)

    @classmethod
    def from_layout(
        cls, *, dp: int = 1, tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1, order: str = "tp-cp-dp-pp"
    ) -> PeerGroups:
        """Group by the sizes of a regular layout.

        order: the dimensions from the one that changes fastest with the rank to the slowest. The default is
        how
            MindSpore and mindformers place ranks: contiguous pipeline stages, in them data-parallel replicas,
            in them context and tensor parallelism. Experts are spread over consecutive ranks of a stage.
        Raises ValueError for a size below 1, an order that is not of these four, or an ep that does not
        divide the ranks of a stage.
        """
        sizes = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
        dimensions = order.split("-")
        if sorted(dimensions) != sorted(sizes):
            raise ValueError(
                f"order {order!r}: it must name each of dp, tp, pp and cp once, as tp-cp-dp-pp does"
            )
        for name, size in {**sizes, "ep": ep}.items():
            if size < 1:
                raise ValueError(f"{name}={size}: the size of a parallel dimension is at least 1")
        if (dp * tp * cp) % ep:
            raise ValueError(f"ep={ep}: it must divide the {dp * tp * cp} ranks of a pipeline stage")
        coordinates = {}
        for rank in range(dp * tp * pp * cp):
            place, rest, inside, stride = {}, rank, 0, 1
            for name in dimensions:
                rest, place[name] = divmod(rest, sizes[name])
                if name != "pp":
                    inside += place[name] * stride
                    stride *= sizes[name]
            coordinates[rank] = {**place, "ep": inside % ep}
        return cls(coordinates)

    def local(self, world_size: int) -> Grouping:
        """Return the groups in which local values and timings are compared."""
        return self._grouping(world_size, _LOCAL_KEY)

    def replicas(self, world_size: int) -> Grouping:
        """Return the groups in which replicated values must be equal."""
        return self._grouping(world_size, _REPLICA_KEY)

    def _grouping(self, world_size: int, names: tuple[str, ...]) -> Grouping:
        known = self._cache.get((world_size, names))
        if known is None:
            known = _lay_out([self._key(rank, names) for rank in range(world_size)])
            self._cache[world_size, names] = known
        return known

    def _key(self, rank: int, names: tuple[str, ...]) -> Hashable:
        if self._coordinates is None:
            return ()
        place = self._coordinates.get(rank)
        return rank if place is None else tuple(place.get(name, 0) for name in names)


def _lay_out(keys: list[Hashable]) -> Grouping:
    rows: dict[Hashable, list[int]] = {}
    for rank, key in enumerate(keys):
        rows.setdefault(key, []).append(rank)
    longest = max(map(len, rows.values()), default=0)
    members = np.zeros((len(rows), longest), dtype=np.int64)
    present = np.zeros(members.shape, dtype=np.bool_)
    group_of = np.zeros(len(keys), dtype=np.int64)
    slot_of = np.zeros(len(keys), dtype=np.int64)
    for row, ranks in enumerate(rows.values()):
        members[row, : len(ranks)] = ranks
        present[row, : len(ranks)] = True
        group_of[ranks] = row
        slot_of[ranks] = np.arange(len(ranks))
    return Grouping(members, present, group_of, slot_of)
