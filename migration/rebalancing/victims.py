"""Which grains a donor gives: whole clusters by least cut, then the coldest, never just any.

Only as much is looked at as is needed: the coldest grains come from an iterator, and a grain is asked what its move
costs when it is about to be chosen, and not before.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.rebalancing.clusters import Cluster, GrainLoad
from silo.migration.rebalancing.plan import Transfer

ASKED_AHEAD = 32
"""How many more of the coldest grains are asked for their cost than are needed, to pass over dear ones."""

Cost = Callable[[GrainId], float | None]
"""What moving the grain costs, by its own word; None where it does not want to be moved now."""


class Victims(msgspec.Struct, frozen=True):
    """The grains that go by one transfer, in the order in which they should."""

    transfer: Transfer
    grains: tuple[GrainId, ...]
    amount: int
    in_clusters: int
    """How many of them go with the grains that they talk to."""
    busy: int
    """How many of them have turns running or waiting."""


def pick_victims(
    transfers: Sequence[Transfer],
    coldest: Iterable[GrainLoad],
    *,
    clusters: Iterable[Cluster] = (),
    cost_of: Cost | None = None,
    cost_max: float = float("inf"),
    allow_busy: bool = True,
) -> list[Victims]:
    """The grains for one donor's transfers; together they weigh no more than these, and less where no more can go, or
    where a cluster would be torn that may go whole by a later plan.

    Args:
        transfers: what the donor gives, of one plan.
        coldest: its grains, the coldest first (`coldest_first` makes such an order). As many are taken as are needed.
        clusters: those that `find_clusters` found among them.
        cost_of: asks a grain for the cost of its move; where it says none, all of its cluster stays.
        cost_max: grains whose move costs more stay.
        allow_busy: whether grains with turns running or waiting go, too. Where not, a hot set stays where it is.
    """
    picking = _Picking(transfers, cost_of, cost_max, allow_busy)
    members = picking.take_clusters(clusters)
    picking.take_coldest(coldest, members)
    return picking.victims()


def coldest_first(grains: Iterable[GrainLoad]) -> Iterator[GrainLoad]:
    """The grains by how little is said to them for what they weigh, sorted no further than they are taken."""
    heap = [(one.activity / max(1, one.weight), one.is_busy, place, one) for place, one in enumerate(grains)]
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)[3]


class _Picking:
    def __init__(self, transfers: Sequence[Transfer], cost_of: Cost | None, cost_max: float, allow_busy: bool) -> None:
        self._transfers = transfers
        self._left = [transfer.amount for transfer in transfers]
        self._taken: list[list[GrainLoad]] = [[] for _ in transfers]
        self._in_clusters = [0] * len(transfers)
        self._cost_of = cost_of
        self._cost_max = cost_max
        self._allow_busy = allow_busy

    def take_clusters(self, clusters: Iterable[Cluster]) -> set[GrainId]:
        """Those that fit, each to where it loses least; returns the members of those that did not go."""
        staying: set[GrainId] = set()
        receivers = [transfer.receiver for transfer in self._transfers]
        for cluster in sorted(clusters, key=lambda one: _least_loss(one, receivers) / len(one.grains)):
            weight = cluster.weight
            fitting = [place for place, left in enumerate(self._left) if weight <= left]
            if not fitting or not all(self._may_go(one) and self._cost(one) is not None for one in cluster.grains):
                staying.update(one.grain for one in cluster.grains)
                continue
            place = min(fitting, key=lambda place: (cluster.loss(receivers[place]), -self._left[place]))
            self._left[place] -= weight
            self._taken[place] += cluster.grains
            self._in_clusters[place] += len(cluster.grains)
        return staying

    def take_coldest(self, coldest: Iterable[GrainLoad], members: set[GrainId]) -> None:
        """Grains that are in no cluster first; those of clusters that were too large or could not go, last."""
        gone = {one.grain for taken in self._taken for one in taken}
        torn: list[GrainLoad] = []
        alone = self._sifted(coldest, gone, members, torn)
        self._take(alone)
        self._left = [left if self._may_tear(place) else 0 for place, left in enumerate(self._left)]
        self._take(iter(torn))

    def _may_tear(self, place: int) -> bool:
        """Where more is to follow, what a cluster does not fit into can wait; as long as anything goes at all."""
        return not self._transfers[place].rest or not self._taken[place]

    def _sifted(
        self, coldest: Iterable[GrainLoad], gone: set[GrainId], members: set[GrainId], torn: list[GrainLoad]
    ) -> Iterator[GrainLoad]:
        for one in coldest:
            if one.grain in gone or not self._may_go(one):
                continue
            if one.grain in members:
                torn.append(one)
            else:
                yield one

    def _take(self, candidates: Iterator[GrainLoad]) -> None:
        """In turns: so many as could be needed are asked, and the cheapest of these go."""
        while any(self._left):
            wanted = sum(self._left)
            asked = list(itertools.islice(candidates, wanted if self._cost_of is None else wanted + ASKED_AHEAD))
            if not asked:
                return
            priced = [(cost, place, one) for place, one in enumerate(asked) if (cost := self._cost(one)) is not None]
            if self._cost_of is not None:
                priced.sort()
            for _, _, one in priced:
                self._place(one)

    def _place(self, one: GrainLoad) -> None:
        place = max(range(len(self._left)), key=self._left.__getitem__)
        if one.weight <= self._left[place]:
            self._left[place] -= one.weight
            self._taken[place].append(one)

    def _may_go(self, one: GrainLoad) -> bool:
        return not one.stays and (self._allow_busy or not one.is_busy)

    def _cost(self, one: GrainLoad) -> float | None:
        cost = 0.0 if self._cost_of is None else self._cost_of(one.grain)
        return None if cost is None or cost > self._cost_max else cost

    def victims(self) -> list[Victims]:
        return [
            Victims(
                transfer,
                tuple(one.grain for one in taken),
                sum(one.weight for one in taken),
                in_clusters,
                sum(one.is_busy for one in taken),
            )
            for transfer, taken, in_clusters in zip(self._transfers, self._taken, self._in_clusters, strict=True)
        ]


def _least_loss(cluster: Cluster, receivers: Sequence[SiloAddress]) -> float:
    return min((cluster.loss(receiver) for receiver in receivers), default=0.0)
