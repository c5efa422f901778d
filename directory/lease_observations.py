"""For how long each of the others has been silent, as the table shows it: rule R5."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from silo.directory.addresses import SiloAddress
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import SiloStatus, Table


@dataclass(frozen=True, slots=True)
class Observation:
    """Since when, by the own clock, a row has shown the same seq in the same run of the store."""

    run: str
    seq: int
    since: float


class Observations:
    """One observation for each living silo but the own."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self.answered_at = -math.inf
        """When the table last answered."""
        self._observed: dict[SiloAddress, Observation] = {}

    def take(self, table: Table, me: SiloAddress | None, now: float) -> None:
        """Look at an answer that came just now.

        After a gap between answers everybody gets the whole time again: else, after an outage of the store, the first
        silo back would judge all those who are only on their way back.
        """
        gap = now - self.answered_at > self._settings.gap_s
        self.answered_at = now
        observed: dict[SiloAddress, Observation] = {}
        for row in table.rows:
            if row.silo == me or row.status is SiloStatus.DEAD:
                continue
            known = self._observed.get(row.silo)
            if known is None or gap or (known.run, known.seq) != (table.run, row.seq):
                known = Observation(table.run, row.seq, now)
            observed[row.silo] = known
        self._observed = observed

    def of(self, silo: SiloAddress) -> Observation | None:
        return self._observed.get(silo)

    def __iter__(self) -> Iterator[SiloAddress]:
        return iter(list(self._observed))

    def silence_s(self, silo: SiloAddress) -> float:
        """For how long the silo had not renewed when the table last answered; infinity for one that is no member."""
        observation = self._observed.get(silo)
        return math.inf if observation is None else self.answered_at - observation.since

    def audible(self, now: float) -> set[SiloAddress]:
        """Those whose lease may still run."""
        return {silo for silo, seen in self._observed.items() if now - seen.since < self._settings.lease_s}
