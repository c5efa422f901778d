"""Until when one silo may start turns: rule R2, from the evidence that nobody may have replaced it."""

from __future__ import annotations

import math
from collections.abc import Collection

from silo.directory.addresses import SiloAddress
from silo.directory.lease_settings import LeaseSettings


class Evidence:
    """Renewals and acknowledgements, each by when it was *sent* for, never by when the answer came."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self.renewed = -math.inf
        self.acknowledged: dict[SiloAddress, float] = {}

    def take_renewal(self, sent_at: float) -> None:
        self.renewed = max(self.renewed, sent_at)

    def take_acknowledgement(self, silo: SiloAddress, sent_at: float) -> None:
        self.acknowledged[silo] = max(self.acknowledged.get(silo, -math.inf), sent_at)

    @property
    def leased_until(self) -> float:
        return self.renewed + self._settings.lease_s

    def deadline(self, others: Collection[SiloAddress]) -> float:
        """The time until which turns may start, where these are the other members of the adopted view."""
        by_lease = self.leased_until  # green
        by_acknowledgements = min(by_lease + self._settings.grace_s, self._acknowledged_until(others))  # amber
        return max(by_lease, by_acknowledgements)

    def forget_all_but(self, others: Collection[SiloAddress]) -> None:
        """Acknowledgements of silos that are no members count in no view to come."""
        self.acknowledged = {silo: at for silo, at in self.acknowledged.items() if silo in others}

    def needed(self, others: int) -> int:
        """How many acknowledgements it takes: half of the others, so that no majority is free to assent; never none,
        so that the only other member may judge a lone silo that it found."""
        return max(1, (others + 1) // 2)

    def _acknowledged_until(self, others: Collection[SiloAddress]) -> float:
        needed = self.needed(len(others))
        given = sorted((self.acknowledged.get(silo, -math.inf) for silo in others), reverse=True)
        return given[needed - 1] + self._settings.lease_s if len(given) >= needed else -math.inf
