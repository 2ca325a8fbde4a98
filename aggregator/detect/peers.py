"""Which ranks may be compared with which: peer groups from the coordinates of the parallel layout.

Without coordinates all ranks of the world are data-parallel peers. With them, a rank that has none stands
alone and is compared with nobody.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankside import layout

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    import numpy.typing as npt

    Float64Array = npt.NDArray[np.float64]
    Int64Array = npt.NDArray[np.int64]

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
        self._given = coordinates is not None
        self._coordinates = None if coordinates is None else {r: dict(c) for r, c in coordinates.items()}
        for rank, place in (self._coordinates or {}).items():
            unknown = sorted(set(place) - set(layout.DIMENSIONS))
            if unknown:
                raise ValueError(
                    f"rank {rank}: unknown coordinate {unknown[0]!r}; accepted are {', '.join(layout.DIMENSIONS)}"
                )
        self._cache: dict[tuple[int, tuple[str, ...]], Grouping] = {}

    @classmethod
    def from_coordinates(cls, coordinates: Mapping[int, Mapping[str, int]]) -> PeerGroups:
        """Group by coordinates: for each rank any of dp, tp, pp, cp, ep; what is left out is 0.

        Raises ValueError for a coordinate of another name.
        """
        return cls(coordinates)

    @classmethod
    def from_layout(cls, sizes: Mapping[str, int]) -> PeerGroups:
        """Group by the sizes of a regular layout, as `rankside.layout.coordinates` places ranks in it.

        Raises ValueError for what is no layout.
        """
        ranks = math.prod(sizes.get(name, 1) for name in layout.ORDER)
        return cls({rank: layout.coordinates(rank, sizes) for rank in range(ranks)})

    @property
    def coordinates(self) -> Mapping[int, Mapping[str, int]]:
        """What is known of each rank's place."""
        return self._coordinates or {}

    def learn(self, rank: int, place: Mapping[str, int]) -> None:
        """Take what a rank says of its place, unless a layout was given or it is known."""
        known = {name: index for name, index in place.items() if name in layout.DIMENSIONS}
        if known and not self._given and self.coordinates.get(rank) != known:
            self._coordinates = {**(self._coordinates or {}), rank: known}
            self._cache.clear()

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
