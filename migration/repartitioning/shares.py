"""What each silo has and may have, by the last reports: counts, loads, caps and floors."""

from __future__ import annotations

import math
from collections.abc import Iterable

from silo.directory.addresses import SiloAddress
from silo.migration.repartitioning.messages import Report
from silo.migration.repartitioning.settings import RepartitioningSettings

STALE_AFTER_PERIODS = 3
"""A silo that has reported nothing for more periods than this is asked for nothing."""
CAPACITY_MIN = 1e-6
"""No silo counts for less than this; one that reports nonsense, neither."""


class Shares:
    """The share that each silo has of all activations and of all load, in proportion to its capacity.

    Args:
        capacity: that of this silo.
    """

    def __init__(self, me: SiloAddress, settings: RepartitioningSettings, capacity: float = 1.0) -> None:
        self._me = me
        self._settings = settings
        self._reports: dict[SiloAddress, Report] = {}
        self._at: dict[SiloAddress, float] = {}
        self._members: frozenset[SiloAddress] | None = None
        self.own = Report(0, 0.0, max(CAPACITY_MIN, capacity))

    def update(self, count: int, load: float) -> None:
        """What this silo has now, by its own knowledge."""
        self.own = Report(count, load, self.own.capacity)

    def heard(self, silo: SiloAddress, report: Report, now: float) -> None:
        """Take in a report; one of a silo that is no member, or of nonsense, is ignored."""
        sound = report.count >= 0 and 0 <= report.load < math.inf and CAPACITY_MIN <= report.capacity < math.inf
        if sound and silo != self._me and (self._members is None or silo in self._members):
            self._reports[silo] = report
            self._at[silo] = now

    def confine(self, members: frozenset[SiloAddress]) -> None:
        """Others than these count no more."""
        self._members = members
        for silo in [silo for silo in self._reports if silo not in members]:
            del self._reports[silo], self._at[silo]

    def fresh(self, now: float) -> Iterable[SiloAddress]:
        """The other silos whose reports are new enough to ask them for something."""
        oldest = now - STALE_AFTER_PERIODS * self._settings.period_s
        return [silo for silo, at in self._at.items() if at >= oldest]

    @property
    def is_alone(self) -> bool:
        return not self._reports

    def known(self, silo: SiloAddress) -> Report | None:
        return self.own if silo == self._me else self._reports.get(silo)

    def _all(self) -> Iterable[Report]:
        return (self.own, *self._reports.values())

    def count_per_capacity(self) -> float:
        """The activations that a silo of capacity 1 would have, were all even."""
        return sum(each.count for each in self._all()) / sum(each.capacity for each in self._all())

    def load_per_capacity(self) -> float:
        """The load that a silo of capacity 1 would have, were all even."""
        return sum(each.load for each in self._all()) / sum(each.capacity for each in self._all())

    def cap(self, capacity: float, per_capacity: float | None = None) -> int:
        """The most activations that a silo may be brought to."""
        mean = self.count_per_capacity() if per_capacity is None else per_capacity
        return math.ceil((1.0 + self._settings.cap_slack) * mean * capacity)

    def floor(self) -> int:
        """The fewest activations that this silo may be brought to."""
        return math.floor((1.0 - self._settings.floor_slack) * self.count_per_capacity() * self.own.capacity)

    def takes_load(self, load: float, reserved: float, source: SiloAddress) -> bool:
        """Whether this silo may take so much more from that one: within its share, or less than the other has."""
        after = self.own.load + reserved + load
        if after <= (1.0 + self._settings.load_slack) * self.load_per_capacity() * self.own.capacity:
            return True
        theirs = self._reports.get(source)
        return theirs is not None and after / self.own.capacity < theirs.load / theirs.capacity
