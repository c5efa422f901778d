"""A cluster on paper: silos that are only numbers, for shipped policies and planners to decide about."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.membership import SiloInfo, SiloRow, SiloStatus, Table, View
from silo.migration.rebalancing.loads import LoadSnapshot, SiloLoad
from silo.placement.policy import CAPACITY, AttachablePolicy, Candidate, PlacementPolicy, PlacementView


def address(number: int) -> SiloAddress:
    return SiloAddress(f"10.{number // 250}.{number % 250}.1:7000", 1)


class PaperCluster:
    """So many silos with their counts of grains, and what each of them has heard of the others' counts.

    Args:
        hears: a silo hears of all that was placed before each decision of its own, or only before every so many
            decisions of all silos; 0 for never.
    """

    def __init__(
        self, silos: int, rng: random.Random, *, capacities: Sequence[float] | None = None, hears: int = 1
    ) -> None:
        self.rng = rng
        self.counts = [0] * silos
        self.capacities = list(capacities or [1.0] * silos)
        self.addresses = [address(number) for number in range(silos)]
        self.number_of = {silo: number for number, silo in enumerate(self.addresses)}
        self._hears = hears
        self._decisions = 0
        self._news: list[int] = []
        self._silos: dict[int, _PaperSilo] = {}
        self._attached: PlacementPolicy | None = None
        rows = [
            SiloRow(
                silo,
                SiloInfo(f"silo-{number}", meta={} if each == 1.0 else {CAPACITY: str(each)}),
                SiloStatus.ACTIVE,
                seq=1,
                seen=1,
                joined=1,
            )
            for number, (silo, each) in enumerate(zip(self.addresses, self.capacities, strict=True))
        ]
        self.members = View(Table("paper", 1, tuple(rows)))
        ordered = sorted(rows, key=lambda row: row.silo)
        self.candidates = tuple(Candidate.of(row) for row in ordered)

    def place(self, policy: PlacementPolicy, grain: GrainId, decider: int) -> int:
        """Let this silo decide where the grain lands, and have it there."""
        silo = self._silo(decider, policy)
        if self._hears and self._decisions % self._hears == 0:
            silo.hear(self._news)
        self._decisions += 1
        chosen = policy.choose(grain, PlacementView(1, self.candidates, self.rng), silo.silo)
        number = self.number_of[chosen]
        self.add(number)
        return number

    def add(self, silo: int, change: int = 1) -> None:
        self.counts[silo] += change
        self._news.append(silo)

    def snapshot(self, version: int = 1) -> LoadSnapshot:
        """What a planner is told."""
        return LoadSnapshot(
            version,
            1,
            tuple(
                SiloLoad(silo, f"silo-{number}", self.counts[number], capacity=self.capacities[number])
                for number, silo in enumerate(self.addresses)
            ),
        )

    def spread(self) -> float:
        """How much the fullest silo has, as a multiple of what its capacity would give it."""
        fullest = max(count / each for count, each in zip(self.counts, self.capacities, strict=True))
        return fullest * sum(self.capacities) / max(1, sum(self.counts))

    def _silo(self, number: int, policy: PlacementPolicy) -> _PaperSilo:
        silo = self._silos.get(number)
        if silo is None:
            silo = self._silos[number] = _PaperSilo(self, number)
            if isinstance(policy, AttachablePolicy):
                policy.attach(silo)
        return silo


class _PaperSilo:
    """The runtime of a policy at one silo: what it hears comes when it decides."""

    def __init__(self, cluster: PaperCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number
        self._heard = 0
        self._subscribers: list[Callable[[SiloAddress, int], None]] = []
        self.silo = cluster.addresses[number]
        self.rng = cluster.rng

    def view(self) -> View:
        return self._cluster.members

    def self_load(self) -> int:
        return self._cluster.counts[self._number]

    def peer_load(self, silo: SiloAddress) -> int | None:
        return self._cluster.counts[self._cluster.number_of[silo]]

    def subscribe_loads(self, on_report: Callable[[SiloAddress, int], None]) -> Callable[[], None]:
        self._subscribers.append(on_report)
        return lambda: self._subscribers.remove(on_report)

    def every(self, period_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        return _nothing

    def hear(self, news: Sequence[int]) -> None:
        for number in set(news[self._heard :]):
            for on_report in self._subscribers:
                on_report(self._cluster.addresses[number], self._cluster.counts[number])
        self._heard = len(news)


def _nothing() -> None:
    pass
