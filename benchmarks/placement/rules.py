"""What is compared: each rule with the placement that goes with it, and with how it picks the grains that move."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Protocol

from benchmarks.paper import PaperCluster, address
from benchmarks.placement.others import EachForItself, LeastShard, Moves, Nothing, OrleansRebalancer
from benchmarks.placement.world import World
from silo.directory.addresses import GrainId
from silo.migration.rebalancing.clusters import Cluster, GrainLoad, Neighbour, find_clusters
from silo.migration.rebalancing.loads import LoadSnapshot, SiloLoad, Surroundings
from silo.migration.rebalancing.plan import Transfer
from silo.migration.rebalancing.rebalancer import Move, RebalancerState, step
from silo.migration.rebalancing.settings import RebalanceSettings
from silo.migration.rebalancing.victims import pick_victims
from silo.placement.policies import ActivationCountPlacement

KIND = "g"
WINDOW, WINDOW_LEAST = 2, 64
"""For how many times as many grains as are to go neighbours are looked up, and for how many at least."""


class Rule(Protocol):
    """One way to keep a cluster even."""

    @property
    def name(self) -> str: ...

    def place(self, world: World, grains: Sequence[int]) -> None:
        """Have these grains activated somewhere."""
        ...

    def rebalance(self, world: World, now: float) -> list[tuple[int, int, int]]:
        """Move what is to be moved now; from which silo to which other, how many."""
        ...


class Ours:
    """The planner as it is shipped, with `activation-count` for placement.

    Args:
        rate: the fleet's budget, in parts of all grains for each minute.
        victims: `clusters` as shipped; `coldest` and `any` to see what whole clusters are worth.
    """

    def __init__(
        self, rate: float = 0.10, victims: str = "clusters", settings: RebalanceSettings | None = None
    ) -> None:
        self.name = f"ours, {rate:.0%}/min" + ("" if victims == "clusters" else f", {victims}")
        self._rate = rate
        self._victims = victims
        self._settings = settings or RebalanceSettings()
        self._state = RebalancerState()
        self._version = 0
        self._tokens = 0.0
        self._before = 0.0
        self._orders: dict[int, list[int]] = {}

    def place(self, world: World, grains: Sequence[int]) -> None:
        place_by_count(world, grains)

    def rebalance(self, world: World, now: float) -> list[tuple[int, int, int]]:
        counts = world.counts()
        per_s = self._rate * sum(counts) / 60
        room = max(self._settings.bite_grains, per_s * 5)
        self._tokens = min(self._tokens + per_s * (now - self._before), room)
        self._before = now
        self._version += 1
        loads = LoadSnapshot(
            self._version,
            1,
            tuple(SiloLoad(address(silo), str(silo), count) for silo, count in zip(world.live, counts, strict=True)),
        )
        around = Surroundings(settled_for_s=now - world.changed_at)
        self._state, verdict = step(
            self._settings, self._state, loads, around, now=now, budget_grains=int(self._tokens)
        )
        if not isinstance(verdict, Move):
            self._orders.clear()
            return []
        number_of = {address(silo): silo for silo in world.live}
        done: list[tuple[int, int, int]] = []
        by_donor: dict[int, list[Transfer]] = {}
        for transfer in verdict.plan.transfers:
            by_donor.setdefault(number_of[transfer.donor], []).append(transfer)
        for donor, transfers in by_donor.items():
            clusters = self._clusters(world, donor, sum(each.amount for each in transfers))
            for victims in pick_victims(transfers, self._coldest(world, donor), clusters=clusters):
                receiver = number_of[victims.transfer.receiver]
                for grain in victims.grains:
                    world.move(int(grain.key), receiver)
                done.append((donor, receiver, len(victims.grains)))
                self._tokens -= len(victims.grains)
        return done

    def _coldest(self, world: World, donor: int) -> Iterator[GrainLoad]:
        """The order in which a silo's catalog has its idle grains: made once, and walked through as far as needed."""
        order = self._orders.get(donor)
        if order is None:
            order = self._orders[donor] = list(world.hosted[donor])
            if self._victims == "any":
                world.rng.shuffle(order)
            else:
                order.sort(key=world.graph.activity)
        return (_load(world, grain) for grain in order if world.home[grain] == donor)

    def _clusters(self, world: World, donor: int, amount: int) -> list[Cluster]:
        """Those among as many of its grains as may be of use."""
        if self._victims != "clusters" or world.graph.name == "none":
            return []
        wanted = max(WINDOW_LEAST, WINDOW * amount)
        looked_at: dict[int, None] = {}
        here = world.hosted[donor]
        begin = world.rng.randrange(max(1, len(here)))
        for place in range(len(here)):
            if len(looked_at) >= wanted:
                break
            grain = here[(begin + place) % len(here)]
            looked_at.update((each, None) for each in world.graph.group(grain) if world.home[each] == donor)
        neighbours = {
            as_id(grain): [
                Neighbour(as_id(other), rate, address(world.home[other]))
                for other, rate in world.graph.neighbours(grain)[:16]
                if world.home[other] >= 0
            ]
            for grain in looked_at
        }
        return find_clusters(address(donor), (_load(world, grain) for grain in looked_at), neighbours)


class Theirs:
    """A rule of another system, which picks whatever grains come first, with the placement that goes with it."""

    def __init__(self, rule: Nothing | OrleansRebalancer | EachForItself | LeastShard) -> None:
        self.name = rule.name
        self._rule = rule

    def place(self, world: World, grains: Sequence[int]) -> None:
        silos = len(world.live)
        seen: list[int] = []
        for place, grain in enumerate(grains):
            if place % silos == 0:
                seen = world.counts()  # reports come about once for so many placements
            drawn: Sequence[int]
            if isinstance(self._rule, OrleansRebalancer):
                drawn = world.rng.sample(range(silos), math.ceil(math.sqrt(silos)))
            elif isinstance(self._rule, LeastShard):
                drawn = range(silos)
            else:
                drawn = [world.rng.randrange(silos)]
            to = min(drawn, key=seen.__getitem__)
            if isinstance(self._rule, LeastShard):
                seen[to] += 1  # one coordinator places all, and knows what it did
            world.put(grain, world.live[to])

    def rebalance(self, world: World, now: float) -> list[tuple[int, int, int]]:
        moves: Moves = self._rule.moves(now, world.counts())
        done: list[tuple[int, int, int]] = []
        for start, end, amount in moves:
            donor, receiver = world.live[start], world.live[end]
            gone = world.hosted[donor][:amount]
            for grain in gone:
                world.move(grain, receiver)
            done.append((donor, receiver, len(gone)))
        return done


def place_by_count(world: World, grains: Sequence[int]) -> None:
    """By the shipped policy; silos hear of each other about once in so many placements as there are silos."""
    cluster = PaperCluster(len(world.live), world.rng, hears=len(world.live))
    for place, count in enumerate(world.counts()):
        if count:
            cluster.add(place, count)
    policy = ActivationCountPlacement()
    for grain in grains:
        world.put(grain, world.live[cluster.place(policy, GrainId(KIND, "x"), world.rng.randrange(len(world.live)))])


def rules(names: Sequence[str] | None = None) -> list[Rule]:
    """New ones, those of these names or all."""
    every: list[Rule] = [
        Theirs(Nothing()),
        Theirs(OrleansRebalancer()),
        Theirs(EachForItself()),
        Theirs(LeastShard()),
        Ours(0.10),
        Ours(1.00),
        Ours(0.10, "coldest"),
        Ours(0.10, "any"),
    ]
    return [rule for rule in every if names is None or rule.name in names]


def as_id(grain: int) -> GrainId:
    """The identity of a grain that is a number here."""
    return GrainId(KIND, str(grain))


def _load(world: World, grain: int) -> GrainLoad:
    return GrainLoad(as_id(grain), world.graph.activity(grain))


def chance(*words: object) -> random.Random:
    """A source of chance that is the same for the same words."""
    return random.Random(" ".join(map(str, words)))
