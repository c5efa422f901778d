"""The times of the lease: three are chosen, all others follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from silo.directory.errors import InvalidSettings


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The times of the lease. Holders count `lease_s` and `grace_s` as they are; waiters add the drift."""

    lease_s: float = 5.0
    """For how long after a renewal was sent a silo may start turns by it."""
    grace_s: float = 25.0
    """For how much longer acknowledgements of other silos let it go on while the store does not answer."""
    drift: float = 0.1
    """By how much two clocks of the cluster may run apart, as a share."""
    prove_deaths: bool = True
    """Whether the end of a neighbour's process, seen through the operating system, counts as its death."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lease_s) and self.lease_s > 0):
            raise InvalidSettings(f"lease_s is a time above 0, not {self.lease_s}")
        if not (math.isfinite(self.grace_s) and self.grace_s >= 0):
            raise InvalidSettings(f"grace_s is a time of at least 0, not {self.grace_s}")
        if not 0 < self.drift < 1:
            raise InvalidSettings(f"drift is a share between 0 and 1, not {self.drift}")

    @property
    def renew_every_s(self) -> float:
        """Also how often others are probed, and how long the next judge waits for the one before it."""
        return self.lease_s / 5

    @property
    def ask_timeout_s(self) -> float:
        """How long one request to the table may take."""
        return self.lease_s / 5

    @property
    def return_within_s(self) -> float:
        """How long a silo that is leaving, and has lost its lease, waits for it to come back: for one renewal."""
        return self.lease_s * 3 / 10

    @property
    def ask_within_s(self) -> float:
        """How long join, advance and goodbye are tried again before they fail with MembershipUnavailable."""
        return self.lease_s * 2

    @property
    def eligible_within_s(self) -> float:
        """A silo that was silent for longer gets no new placements."""
        return self.lease_s * 2 / 5

    @property
    def probe_after_s(self) -> float:
        """A silo whose last renewal is older than this probes the others."""
        return self.lease_s * 2 / 5

    @property
    def gap_s(self) -> float:
        """Answers further apart than this say nothing of who was silent in between."""
        return self.lease_s / 2

    @property
    def wait_s(self) -> float:
        """W: how long a silo must have been silent before it may be declared dead with the assent of others."""
        return self.lease_s * (1 + self.drift)

    @property
    def wait_alone_s(self) -> float:
        """S: how long a silo must have been silent before it may be declared dead without anybody's assent."""
        return (self.lease_s + self.grace_s) * (1 + self.drift)
