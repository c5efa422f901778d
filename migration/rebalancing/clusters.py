"""Grains of one silo that talk mostly among themselves: what should move, should move together.

Found by joining grains along their strongest ties. A grain is known by its neighbours' messages alone, so this needs no
look at the whole graph, and costs a donor time only for what it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from silo.directory.addresses import GrainId, SiloAddress

TIE_LEAST = 1 / 16
"""Two grains are tied where their messages are at least this fraction of all those of each (the geometric mean of the
two fractions): a player to its game, and not a fan to a celebrity whom everybody writes to."""
CLUSTER_GRAINS_MAX = 64
"""The largest cluster that moves as one; further ties are cut."""


class GrainLoad(msgspec.Struct, frozen=True, gc=False):
    """What a donor knows of one grain without asking it."""

    grain: GrainId
    activity: float = 0.0
    """Messages per second, lately; 0 is cold."""
    weight: int = 1
    """In the measure that is evened out."""
    is_busy: bool = False
    """Whether turns of it are running or waiting."""
    stays: str = ""
    """Why automatic movers leave it alone: its kind is not migratable, it is pinned, it moves already."""


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """A grain's messages with another one."""

    grain: GrainId
    rate: float
    silo: SiloAddress
    """Where the other one was, by its last message."""


class Cluster(msgspec.Struct, frozen=True):
    """Grains that are moved together, with what their move would make long and short."""

    grains: tuple[GrainLoad, ...]
    inside: float
    """Messages per second among them: local here, and local there."""
    cut: float
    """Messages per second with grains that stay here: local now, remote after."""
    abroad: Mapping[SiloAddress, float]
    """Messages per second with grains of other silos: local after a move to that one."""

    @property
    def weight(self) -> int:
        return sum(one.weight for one in self.grains)

    def loss(self, receiver: SiloAddress) -> float:
        """By how many messages per second a move there makes more remote than local; below zero a gain."""
        return self.cut - self.abroad.get(receiver, 0.0)


def find_clusters(
    here: SiloAddress,
    grains: Iterable[GrainLoad],
    neighbours: Mapping[GrainId, Iterable[Neighbour]],
    *,
    tie_least: float = TIE_LEAST,
    grains_max: int = CLUSTER_GRAINS_MAX,
) -> list[Cluster]:
    """The clusters among a silo's grains, those with the least cut for each grain first.

    A grain that stays is in none, and what its neighbours say to it counts as cut. What talks more to the rest of the
    silo than within itself is no cluster.
    """
    loads = {one.grain: one for one in grains if not one.stays}
    totals = {
        grain: max(one.activity, sum(each.rate for each in neighbours.get(grain, ()))) for grain, one in loads.items()
    }
    ties = sorted(
        (-tie, grain, other)
        for grain in loads
        for other, rate in _local(grain, loads, neighbours)
        if rate > 0 and (tie := rate / math.sqrt(totals[grain] * max(rate, totals[other]))) >= tie_least
    )
    joined = _Joined(grains_max)
    for _, grain, other in ties:
        joined.join(grain, other)
    found = [
        _cluster(here, [loads[grain] for grain in members], neighbours)
        for members in joined.groups()
        if len(members) > 1
    ]
    clusters = [one for one in found if one.inside > one.cut]
    return sorted(clusters, key=lambda one: (one.cut / len(one.grains), one.grains[0].grain))


def _local(
    grain: GrainId, loads: Mapping[GrainId, GrainLoad], neighbours: Mapping[GrainId, Iterable[Neighbour]]
) -> Iterable[tuple[GrainId, float]]:
    """Its neighbours that may move with it. Each end keeps a table of its own, and either may have lost the other."""
    return (
        (each.grain, each.rate) for each in neighbours.get(grain, ()) if each.grain in loads and each.grain != grain
    )


def _cluster(here: SiloAddress, grains: list[GrainLoad], neighbours: Mapping[GrainId, Iterable[Neighbour]]) -> Cluster:
    members = {one.grain for one in grains}
    inside = cut = 0.0
    abroad: dict[SiloAddress, float] = {}
    for one in grains:
        for each in neighbours.get(one.grain, ()):
            if each.grain in members:
                inside += each.rate / 2  # told by both ends
            elif each.silo == here:
                cut += each.rate
            else:
                abroad[each.silo] = abroad.get(each.silo, 0.0) + each.rate
    return Cluster(tuple(grains), inside, cut, abroad)


class _Joined:
    """Disjoint groups that grow by being joined, up to a size (Tarjan's union-find, with path halving)."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._above: dict[GrainId, GrainId] = {}
        self._sizes: dict[GrainId, int] = {}

    def join(self, one: GrainId, other: GrainId) -> None:
        top, under = self._top(one), self._top(other)
        sizes = self._sizes.get(top, 1), self._sizes.get(under, 1)
        if top == under or sum(sizes) > self._size_max:
            return
        if sizes[0] < sizes[1]:
            top, under = under, top
        self._above[under] = top
        self._sizes[top] = sum(sizes)

    def groups(self) -> list[list[GrainId]]:
        groups: dict[GrainId, list[GrainId]] = {}
        for grain in list(self._above):
            groups.setdefault(self._top(grain), []).append(grain)
        return [sorted(members) for members in groups.values()]

    def _top(self, grain: GrainId) -> GrainId:
        above = self._above
        while (up := above.setdefault(grain, grain)) != grain:
            above[grain] = above.setdefault(up, up)
            grain = up
        return grain
