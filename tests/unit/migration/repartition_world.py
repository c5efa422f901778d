"""One silo's repartitioner under test: a fake of its silo, names, and messages by hand."""

from __future__ import annotations

import random
from typing import Any

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.hub_first import HubFirst
from silo.migration.repartitioning.messages import Event, Heard, Order, Report, Tick
from silo.migration.repartitioning.settings import RepartitioningSettings, Strategy

HERE, THERE, ELSEWHERE = (SiloAddress(f"{name}:1", 1) for name in ("here", "there", "elsewhere"))


def grain(key: object, kind: str = "g") -> GrainId:
    return GrainId(kind, str(key))


def settings(**changes: Any) -> RepartitioningSettings:
    made: dict[str, Any] = {"strategy": Strategy.HUB_FIRST, "recovery_s": 0.0, **changes}
    return RepartitioningSettings(**made)


class Residents:
    """The grains of a silo: those that a test names, and as many others as it says."""

    def __init__(self, others: int = 100) -> None:
        self.others = others
        self.costs: dict[GrainId, float | None] = {}
        self.asked: list[GrainId] = []

    def count(self) -> int:
        return self.others

    def cost_of(self, grain: GrainId) -> float | None:
        self.asked.append(grain)
        return self.costs.get(grain, 1.0)


class Silo:
    """The repartitioner of HERE, and a clock."""

    def __init__(self, *, others: int = 100, seed: int = 1, **changes: Any) -> None:
        self.now = 0.0
        self.residents = Residents(others)
        self.settings = settings(**changes)
        self.exchange = HubFirst(HERE, self.settings, self.residents, random.Random(seed), self.now)

    @property
    def table(self) -> Any:
        return self.exchange.table

    def on(self, event: Event) -> list[Order]:
        return self.exchange.on(event, self.now)

    def hears(self, silo: SiloAddress, count: int, load: float = 1_000.0, capacity: float = 1.0) -> None:
        self.on(Heard(silo, Report(count, load, capacity)))

    def talks(self, one: GrainId, peer: GrainId, silo: SiloAddress, messages: int = 100) -> None:
        """A grain here with one on another silo, or here."""
        if silo == HERE:
            self.table.on_local(one, peer, messages)
        else:
            self.table.on_remote(one, peer, silo, messages)

    def passes(self, for_s: float) -> list[Order]:
        """Time, second by second; what is ordered meanwhile."""
        orders: list[Order] = []
        until = self.now + for_s
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            orders += self.on(Tick())
        return orders
