"""The repartitioner of one silo: events in, orders out. What its strategies have in common.

A runtime tells it what befalls (`on`), asks it whether a grain may come (`admits`), says what it reports to the other
silos (`report`), and has the messaging path feed its table. It sends what it is told to send and moves what it is told
to move; whatever of that fails, the next round begins from what is then so.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.admission import Admission
from silo.migration.repartitioning.choices import Choice
from silo.migration.repartitioning.messages import (
    Aborted,
    Announce,
    Arrived,
    Deactivated,
    Decline,
    Event,
    Handover,
    Heard,
    MembersChanged,
    Message,
    Move,
    Moved,
    Order,
    Received,
    Report,
    Resumed,
    Send,
    Suspended,
    Tick,
    Why,
)
from silo.migration.repartitioning.neighbours import NeighbourTable, Tie
from silo.migration.repartitioning.records import MoveBook
from silo.migration.repartitioning.settings import RepartitioningSettings
from silo.migration.repartitioning.shares import Shares

ANNOUNCED_PERIODS = 2
"""For so many periods an announced place counts more than where a grain was last seen."""


class Residents(Protocol):
    """What the repartitioner asks of its silo. Only what it is about to move is asked for its cost."""

    def count(self) -> int:
        """The activations of this silo."""
        ...

    def cost_of(self, grain: GrainId) -> float | None:
        """What moving it costs, in moves of an ordinary grain; None where it is not active here, or is to stay."""
        ...


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a grain was moved from here: the question, the answer, and the ties that decided it."""

    grain: GrainId
    source: SiloAddress
    target: SiloAddress
    why: Why
    gain: float
    """Messages per second that were to become local, less those that were to become remote."""
    cost: float
    """Messages that the move was reckoned to cost."""
    ties: tuple[Tie, ...]
    at: float

    def __str__(self) -> str:
        heaviest = ", ".join(f"{tie.peer} on {tie.silo} {tie.rate:.2g}/s" for tie in self.ties)
        return (
            f"{self.grain} from {self.source} to {self.target} ({self.why}): gains {self.gain:.3g} messages/s "
            f"for {self.cost:.3g} messages; it talks to {heaviest}"
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """What a silo would move now, and what that is worth."""

    moves: int
    gain: float
    """Messages per second that would become local."""
    cost: float
    """Messages that the moves would cost."""


@dataclass(slots=True)
class Leaving:
    """A grain that has been asked about, or is on its way."""

    until: float
    choice: Choice
    load: float
    ties: tuple[Tie, ...]
    """With its peers, the heaviest first."""
    is_moving: bool = False

    @property
    def target(self) -> SiloAddress:
        return self.choice.target


class Exchange(ABC):
    """What all strategies do: take in what befalls, keep the table true, hand over what moves, remember why."""

    def __init__(
        self,
        me: SiloAddress,
        settings: RepartitioningSettings,
        residents: Residents,
        rng: random.Random,
        now: float,
        capacity: float = 1.0,
    ) -> None:
        self.me = me
        self.table = NeighbourTable(me, settings, rng, now)
        self.book = MoveBook(settings)
        self.shares = Shares(me, settings, capacity)
        self.admission = Admission(settings, self.shares)
        self._settings = settings
        self._residents = residents
        self._leaving: dict[GrainId, Leaving] = {}
        self._announced: dict[GrainId, tuple[SiloAddress, float]] = {}
        self._explained: dict[GrainId, Explanation] = {}
        self._members: frozenset[SiloAddress] | None = None
        self._quiet_until = now
        self._load = 0.0

    @property
    @abstractmethod
    def next_at(self) -> float:
        """When a `Tick` is due at the latest."""

    @property
    def leaving(self) -> int:
        """How many grains have been asked about or are on their way."""
        return len(self._leaving)

    def explain(self, grain: GrainId) -> Explanation | None:
        """Why the grain was moved from here, if that was not too long ago."""
        return self._explained.get(grain)

    def report(self) -> Report:
        """What the other silos are to hear of this one."""
        self._take_stock()
        return self.shares.own

    def admits(self, grain: GrainId, source: SiloAddress, now: float) -> bool:
        """Whether a grain that is about to move here for locality may come."""
        return self.admission.admits(grain, source, now)

    def on(self, event: Event, now: float) -> list[Order]:
        """What follows from the event."""
        match event:
            case Received(silo, message):
                return self._received(silo, message, now)
            case Heard(silo, report):
                self.shares.heard(silo, report, now)
                return []
            case Tick():
                self.table.period(now)
                self._expire(now)
                return [] if now < self._quiet_until else self._tick(now)
            case Moved(grain, target):
                return self._moved(grain, target, now)
            case Aborted(grain):
                return self._aborted(grain, now)
            case Arrived(grain):
                place = self.admission.arrived(grain)
                if place is not None:
                    self.book.arrived(grain, place.record, place.why, place.granted_at, now)
                return []
            case Deactivated(grain):
                return self._deactivated(grain)
            case MembersChanged(members):
                self._confine(members, now)
                return []
            case Suspended(for_s):
                self._quiet_until = max(self._quiet_until, now + for_s)
                return []
            case Resumed():
                self._quiet_until = now
                return []

    # -------------------------------------------------------------------------------------- what a strategy decides

    @abstractmethod
    def _tick(self, now: float) -> list[Order]:
        """Time has passed, and this silo is not to be quiet."""

    @abstractmethod
    def _exchanged(self, silo: SiloAddress, message: Message, now: float) -> list[Order]:
        """A message of the strategy's own."""

    # ------------------------------------------------------------------------------------------- what has happened

    def _received(self, silo: SiloAddress, message: Message, now: float) -> list[Order]:
        if self._members is not None and silo not in self._members:
            return []
        match message:
            case Announce(places, gone):
                for grain, at in places:
                    self._expect(grain, at, now)
                for grain, peer in gone:
                    self.table.part(grain, peer)
            case Handover(neighbourhood):
                self.table.unpack(neighbourhood)
            case Decline(grains):
                for grain in grains:
                    self.admission.release(grain, silo)
            case _:
                return self._exchanged(silo, message, now)
        return []

    def _moved(self, grain: GrainId, target: SiloAddress, now: float) -> list[Order]:
        self._leaving.pop(grain, None)
        self.book.forget(grain)
        self._expect(grain, target, now)
        packed = self.table.packed(grain)
        if packed is None:
            return []
        for peer in packed.peers:
            self.table.soil(peer.peer)
        self.table.forget(grain)
        return [Send(target, Handover(packed))]

    def _aborted(self, grain: GrainId, now: float) -> list[Order]:
        leaving = self._leaving.pop(grain, None)
        if leaving is None:
            return []
        self.book.held_back(grain, now)
        return [
            Send(leaving.target, Decline((grain,))),
            *self._announce(((grain, self.me),), leaving.ties, leaving.target),
        ]

    def _deactivated(self, grain: GrainId) -> list[Order]:
        ties = self.table.ties(grain)
        for peer in self.table.peers(grain):
            self.table.part(peer, grain)
        self.table.forget(grain)
        self.book.forget(grain)
        leaving = self._leaving.pop(grain, None)
        orders: list[Order] = [] if leaving is None else [Send(leaving.target, Decline((grain,)))]
        away: dict[SiloAddress, list[tuple[GrainId, GrainId]]] = {}
        for tie in ties:
            if tie.silo != self.me:
                away.setdefault(tie.silo, []).append((tie.peer, grain))
        return [*orders, *(Send(silo, Announce(gone=tuple(gone))) for silo, gone in away.items())]

    def _confine(self, members: frozenset[SiloAddress], now: float) -> None:
        """The members have changed: what was being asked is void, and nothing moves until things have settled."""
        self._members = members
        self.shares.confine(members)
        self.admission.clear(members)
        self._quiet_until = max(self._quiet_until, now + self._settings.recovery_s)
        for grain in [grain for grain, each in self._leaving.items() if not each.is_moving]:
            del self._leaving[grain]
        self._announced = {grain: place for grain, place in self._announced.items() if place[0] in members}

    def _expire(self, now: float) -> None:
        self.admission.expire(now)
        for grain in [grain for grain, each in self._leaving.items() if not each.is_moving and each.until < now]:
            del self._leaving[grain]
        for grain in [grain for grain, (_, until) in self._announced.items() if until < now]:
            del self._announced[grain]

    # ------------------------------------------------------------------------------------------ what strategies use

    def _take_stock(self) -> None:
        """Count this silo's activations anew."""
        self.admission.count_now = self._residents.count()
        self.shares.update(self.admission.count_now, self._load)

    def _measure(self) -> dict[GrainId, float]:
        """The load of each grain that is known, and of the silo."""
        loads = self.table.loads()
        self._load = sum(loads.values())
        self._take_stock()
        return loads

    def _cost_of(self, grain: GrainId) -> float | None:
        """What moving the grain costs, in messages; None where it is to stay."""
        factor = self._residents.cost_of(grain)
        return None if factor is None else self._settings.move_cost * factor * self.book.cost_factor(grain)

    def _may_leave(self, count: int = 0) -> bool:
        """Whether this silo has grains to give, with so many on their way."""
        return self.admission.count_now - count > self.shares.floor()

    def _moving(self) -> int:
        return sum(each.is_moving for each in self._leaving.values())

    def _order(self, grain: GrainId, leaving: Leaving, now: float) -> Move:
        """Have it moved, and remember why."""
        leaving.is_moving = True
        self._explained.pop(grain, None)
        if len(self._explained) >= max(1, self._settings.explained_max):
            del self._explained[next(iter(self._explained))]
        target, why, gain, cost = leaving.choice
        self._explained[grain] = Explanation(grain, self.me, target, why, gain, cost, leaving.ties, now)
        return Move(grain, target, why, gain)

    def _expect(self, grain: GrainId, at: SiloAddress, now: float) -> None:
        """The grain is about to be there, wherever it was last seen."""
        self._announced.pop(grain, None)
        if len(self._announced) >= self._settings.grains_max:
            del self._announced[next(iter(self._announced))]
        self._announced[grain] = (at, now + ANNOUNCED_PERIODS * self._settings.period_s)

    def _announce(
        self, places: tuple[tuple[GrainId, SiloAddress], ...], ties: Iterable[Tie], *but: SiloAddress
    ) -> list[Order]:
        """Tell the silos of those that it talks to."""
        silos = {tie.silo for tie in ties} - {self.me, *but}
        return [Send(silo, Announce(places)) for silo in sorted(silos)]
