"""The bounds of routing, each named once with its unit, and the pause before something is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

VERDICT_GRACE_S: Final = 0.25
"""How long past its deadline a call waits for the silo that has it to say whether it had started."""

DOUBLINGS_MAX: Final = 64
"""After so many the pause has long been as long as it may be; without a bound the number would overflow one day."""


@dataclass(frozen=True, slots=True)
class RoutingLimits:
    """How far, how often and how many; the host fills them in from the settings of calls and queues."""

    hops_max: int = 4
    resolving_calls_max: int = 1000
    """Calls that wait until one grain is found or placed."""
    resolving_bytes_max: int = 64 * 1024 * 1024
    """Bytes of those calls."""
    arrived_calls_max: int = 100_000
    """Calls of other silos that wait or run here."""
    arrived_bytes_max: int = 512 * 1024 * 1024
    """Bytes of those calls."""
    forwarded_noted_max: int = 20_000
    """Forwarded calls that are remembered until their deadline, and likewise those that are refused."""
    retry_pause_first_s: float = 0.05
    """The first pause before something is tried again; each next one is twice as long."""
    retry_pause_last_s: float = 1.0
    """The longest such pause."""
    call_wakes_every_s: float = 0.5
    """How long after one try for a grain that has no place a call may cause the next, before that is due."""


def retry_pause_s(attempt: int, limits: RoutingLimits, rng: random.Random) -> float:
    """The pause before try number `attempt` (from 1)."""
    return jittered_pause_s(attempt, limits, rng.random())


def jittered_pause_s(attempt: int, limits: RoutingLimits, chance: float) -> float:
    """The pause before try number `attempt` (from 1): doubling, capped, and jittered by half to either side.

    Args:
        chance: from 0 to 1.
    """
    doubled = limits.retry_pause_first_s * 2.0 ** min(attempt - 1, DOUBLINGS_MAX)
    return min(doubled, limits.retry_pause_last_s) * (0.5 + chance)
