"""Who may come: places that a silo keeps for grains of others, within its cap, its load and its budget.

The receiver alone decides, by what it has itself and has promised. So no message that is lost, doubled or overtaken,
and no view that is old, brings it above its cap: a grain without a place is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.messages import MoveRecord, Proposal, Why
from silo.migration.repartitioning.settings import RepartitioningSettings
from silo.migration.repartitioning.shares import Shares

WAITING_MAX = 2_000
"""How many proposals wait for a place at a time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place that is kept."""

    source: SiloAddress
    load: float
    why: Why
    record: MoveRecord
    granted_at: float
    until: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    source: SiloAddress
    proposal: Proposal
    until: float


class Admission:
    """The places that this silo keeps."""

    def __init__(self, settings: RepartitioningSettings, shares: Shares) -> None:
        self._settings = settings
        self._shares = shares
        self._kept: dict[GrainId, Place] = {}
        self._waiting: dict[GrainId, _Waiting] = {}
        self._granted = 0  # in this period
        self.count_now = 0

    @property
    def kept(self) -> int:
        """How many places are kept."""
        return len(self._kept)

    @property
    def waiting(self) -> int:
        """How many proposals wait for a place."""
        return len(self._waiting)

    @property
    def load_kept(self) -> float:
        return sum(place.load for place in self._kept.values())

    def begin_period(self) -> None:
        self._granted = 0

    def has_room(self) -> bool:
        """Whether one more may be granted now."""
        return self.count_now + len(self._kept) < self._shares.cap(self._shares.own.capacity) and (
            self._settings.budget_share is None or self._granted < budget(self._settings.budget_share, self.count_now)
        )

    def ask(self, source: SiloAddress, proposal: Proposal, now: float) -> bool:
        """Keep a place for it, if there is one; else it waits for one, until its source asks anew."""
        kept = self._kept.get(proposal.grain)
        if kept is not None:
            return kept.source == source  # asked twice; or, of another silo, a word that was overtaken
        if self._fits(source, proposal):
            self.keep(source, proposal, now)
            return True
        if len(self._waiting) < WAITING_MAX or proposal.grain in self._waiting:
            self._waiting[proposal.grain] = _Waiting(source, proposal, now + self._settings.period_s)
        return False

    def _fits(self, source: SiloAddress, proposal: Proposal) -> bool:
        return self.has_room() and self._shares.takes_load(proposal.load, self.load_kept, source)

    def keep(self, source: SiloAddress, proposal: Proposal, now: float) -> None:
        """Keep a place without asking whether there is one."""
        self._waiting.pop(proposal.grain, None)
        self._kept[proposal.grain] = Place(
            source, proposal.load, proposal.why, proposal.record, now, now + self._settings.lease_s
        )
        self._granted += 1

    def grant_waiting(self, now: float) -> dict[SiloAddress, list[GrainId]]:
        """Keep places for those that wait, most to gain first; by their source."""
        granted: dict[SiloAddress, list[GrainId]] = {}
        if not self._waiting or not self.has_room():
            return granted
        for waiting in sorted(self._waiting.values(), key=lambda each: -each.proposal.gain):
            if not self.has_room():
                break
            if waiting.until >= now and self._fits(waiting.source, waiting.proposal):
                self.keep(waiting.source, waiting.proposal, now)
                granted.setdefault(waiting.source, []).append(waiting.proposal.grain)
        return granted

    def release(self, grain: GrainId, source: SiloAddress) -> None:
        """It does not come from there."""
        for held in (self._kept, self._waiting):
            found = held.get(grain)
            if found is not None and found.source == source:
                del held[grain]

    def admits(self, grain: GrainId, source: SiloAddress, now: float) -> bool:
        """Whether a grain that is about to move here may come; its place is then kept for as long as moves take."""
        place = self._kept.get(grain)
        if place is None or place.source != source or place.until < now:
            return False
        self._kept[grain] = Place(
            source, place.load, place.why, place.record, place.granted_at, now + self._settings.arrival_s
        )
        return True

    def arrived(self, grain: GrainId) -> Place | None:
        """It is here: its place is taken, and its record known."""
        self._waiting.pop(grain, None)
        return self._kept.pop(grain, None)

    def expire(self, now: float) -> None:
        """Places for grains that did not come are free."""
        for held in (self._kept, self._waiting):
            for grain in [grain for grain, each in held.items() if each.until < now]:
                del held[grain]

    def clear(self, members: frozenset[SiloAddress]) -> None:
        """The members have changed: nobody waits any more, and nothing is kept for those that are gone."""
        self._waiting.clear()
        for grain in [grain for grain, place in self._kept.items() if place.source not in members]:
            del self._kept[grain]


BUDGET_MIN = 2
"""A silo gives and takes so many grains in a period, however few it has."""


def budget(share: float, count: int) -> int:
    """How many grains a silo gives, and takes, in one period."""
    return max(BUDGET_MIN, int(share * count))
