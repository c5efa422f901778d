"""A simulated cluster that runs the repartitioner as shipped: silos, what they say to each other, moves, and time.

Messages take a while and may be lost, doubled or overtaken; moves take a while and may be aborted. One seed, one trace.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.exchange import Exchange
from silo.migration.repartitioning.messages import (
    Aborted,
    Arrived,
    Deactivated,
    Event,
    Heard,
    MembersChanged,
    Message,
    Move,
    Moved,
    Order,
    Received,
    Send,
    Tick,
)
from silo.migration.repartitioning.settings import RepartitioningSettings
from silo.migration.repartitioning.strategies import make_exchange

PORT = 11111
GOSSIP_S = 5.0
"""How often silos report their loads."""
TICK_S = 1.0
"""How often each silo's repartitioner hears that time has passed."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What the network and the moves do wrong, as probabilities.

    Args:
        delay_s: how long a message takes at most.
        move_s: how long a move takes.
        lost: of a message.
        doubled: of a message.
        gossip_lost: of a load report.
        aborted: of a move.
    """

    delay_s: float = 0.05
    move_s: float = 0.2
    lost: float = 0.0
    doubled: float = 0.0
    gossip_lost: float = 0.0
    aborted: float = 0.0


@dataclass(slots=True)
class Tally:
    """What happened since it was last cleared."""

    moves: int = 0
    aborted: int = 0
    messages: int = 0
    refused: int = 0
    """Moves that a receiver had no place for."""


class SimulatedSilo:
    """One silo: its grains, and what decides for them."""

    def __init__(
        self, address: SiloAddress, settings: RepartitioningSettings, rng: random.Random, capacity: float
    ) -> None:
        self.address = address
        self.capacity = capacity
        self.grains: set[GrainId] = set()
        self.fixed: set[GrainId] = set()
        """Grains that are to stay."""
        self.exchange: Exchange | None = make_exchange(address, settings, self, rng, 0.0, capacity)

    def count(self) -> int:
        return len(self.grains)

    def cost_of(self, grain: GrainId) -> float | None:
        return 1.0 if grain in self.grains and grain not in self.fixed else None


@dataclass(order=True, slots=True)
class _Due:
    at: float
    order: int
    silo: SimulatedSilo = field(compare=False)
    what: Event | Move | None = field(compare=False)
    """None for a load report that is to be made."""
    source: SimulatedSilo | None = field(compare=False, default=None)


class Fleet:
    """The cluster.

    Args:
        capacities: one for each silo.
        trace: whether to keep what is ordered, for tests.
    """

    def __init__(
        self,
        capacities: Sequence[float],
        settings: RepartitioningSettings,
        seed: int,
        faults: Faults | None = None,
        *,
        trace: bool = False,
    ) -> None:
        self.rng = random.Random(f"fleet {seed}")
        self.faults = faults or Faults()
        self.settings = settings
        self.now = 0.0
        self.tally = Tally()
        self.trace: list[tuple[float, SiloAddress, Order]] = []
        self._is_traced = trace
        self._numbers = count()
        self._due: list[_Due] = []
        self.silos = [
            SimulatedSilo(
                SiloAddress(f"silo-{number}:{PORT}", 1), settings, random.Random(f"{seed} {number}"), capacity
            )
            for number, capacity in enumerate(capacities)
        ]
        self.by_address = {silo.address: silo for silo in self.silos}
        self.where: dict[GrainId, SimulatedSilo] = {}
        self.moving: dict[GrainId, SimulatedSilo] = {}
        for silo in self.silos:
            if silo.exchange is not None:
                self._at(self.rng.random() * GOSSIP_S, silo, None)
                self._at(self.rng.random() * TICK_S, silo, Tick())

    # ------------------------------------------------------------------------------------------------------- grains

    def place(self, grain: GrainId, silo: SimulatedSilo | None = None) -> None:
        """Activate a grain; anywhere, by capacity, where no silo is named."""
        weights = [each.capacity for each in self.silos]
        silo = silo or self.rng.choices(self.silos, weights)[0]
        self.where[grain] = silo
        silo.grains.add(grain)

    def end(self, grain: GrainId) -> None:
        silo = self.where.pop(grain)
        silo.grains.discard(grain)
        self._tell(silo, Deactivated(grain))

    def talk(self, one: GrainId, other: GrainId, messages: int) -> bool:
        """Messages between two grains, seen by their silos; whether they went between silos."""
        here, there = self.where[one], self.where[other]
        if here.exchange is None or there.exchange is None:
            return here is not there
        if here is there:
            here.exchange.table.on_local(one, other, messages)
            return False
        here.exchange.table.on_remote(one, other, there.address, messages)
        there.exchange.table.on_remote(other, one, here.address, messages)
        return True

    def change_members(self, silos: Sequence[SimulatedSilo]) -> None:
        """Tell all that these are the members."""
        members = frozenset(silo.address for silo in silos)
        for silo in self.silos:
            self._tell(silo, MembersChanged(members))

    # --------------------------------------------------------------------------------------------------------- time

    def start_period(self) -> None:
        """What is observed from here on is of now."""
        for silo in self.silos:
            if silo.exchange is not None:
                silo.exchange.table.period(self.now)

    def run_until(self, until: float) -> None:
        """Let all that is due until then come about."""
        due = self._due
        while due and due[0].at <= until:
            each = heapq.heappop(due)
            self.now = each.at
            match each.what:
                case None:
                    self._gossip(each.silo)
                case Tick():
                    self._tell(each.silo, each.what)
                    self._at(self.now + TICK_S, each.silo, each.what)
                case Move():
                    self._move(each.silo, each.what)
                case event:
                    self._tell(each.silo, event)
        self.now = until

    def _at(self, at: float, silo: SimulatedSilo, what: Event | Move | None) -> None:
        heapq.heappush(self._due, _Due(at, next(self._numbers), silo, what))

    def _tell(self, silo: SimulatedSilo, event: Event) -> None:
        if silo.exchange is None:
            return
        for order in silo.exchange.on(event, self.now):
            if self._is_traced:
                self.trace.append((self.now, silo.address, order))
            match order:
                case Send(target, message):
                    self._send(silo, self.by_address[target], message)
                case Move(grain):
                    self.moving[grain] = silo
                    self._at(self.now + self.faults.move_s, silo, order)

    def _send(self, source: SimulatedSilo, target: SimulatedSilo, message: Message) -> None:
        self.tally.messages += 1
        faults, rng = self.faults, self.rng
        for _ in range(1 + (faults.doubled > 0 and rng.random() < faults.doubled)):
            if not (faults.lost > 0 and rng.random() < faults.lost):
                self._at(self.now + rng.random() * faults.delay_s, target, Received(source.address, message))

    def _gossip(self, silo: SimulatedSilo) -> None:
        if silo.exchange is None:
            return
        report = silo.exchange.report()
        heard = Heard(silo.address, report)
        for other in self.silos:
            if other is not silo and self.rng.random() >= self.faults.gossip_lost:
                self._tell(other, heard)
        self._at(self.now + GOSSIP_S, silo, None)

    def _move(self, source: SimulatedSilo, move: Move) -> None:
        target = self.by_address[move.target]
        grain = move.grain
        self.moving.pop(grain, None)
        if self.where.get(grain) is not source:  # it has ended meanwhile
            return
        is_welcome = target.exchange is not None and target.exchange.admits(grain, source.address, self.now)
        if not is_welcome or (self.faults.aborted > 0 and self.rng.random() < self.faults.aborted):
            self.tally.aborted += 1
            self.tally.refused += not is_welcome
            self._tell(source, Aborted(grain))
            return
        self.tally.moves += 1
        source.grains.discard(grain)
        target.grains.add(grain)
        self.where[grain] = target
        self._tell(source, Moved(grain, target.address))
        self._tell(target, Arrived(grain))
