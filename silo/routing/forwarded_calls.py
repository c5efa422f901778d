"""The forwarded calls that have come to this silo, and those that never may: what it knows when it is asked for one."""

from __future__ import annotations

import math
from typing import NamedTuple

from silo.directory.addresses import GrainId, SiloAddress

SWEEP_EVERY_S = 1.0
"""How often a full table looks for what may be forgotten."""


class Key(NamedTuple):
    """One call, anywhere: the caller's silo, and that silo's number for it."""

    origin: SiloAddress
    id: int


class Refusal(NamedTuple):
    """A call that shall not run here."""

    grain: GrainId
    until: float
    """Its deadline, in the loop's time; from then on nobody runs it."""


class ForwardedCalls:
    """Each of them until its deadline, or until its caller's silo is dead.

    Where there is no room the table says so rather than forget: who asks hears that nothing is certain.

    Args:
        calls_max: how many calls that came, and how many that are refused, may be noted.
    """

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._came: dict[Key, float] = {}
        """Until when each is of interest."""
        self._refused: dict[Key, Refusal] = {}
        self._uncertain_until = -math.inf
        """Until then calls may have come that are not noted."""
        self._swept_at = -math.inf

    def __len__(self) -> int:
        return len(self._came) + len(self._refused)

    def came(self, key: Key, deadline: float | None, now: float) -> bool:
        """A call has come. False where it was refused before, and must not run."""
        if key in self._refused:
            return False
        if self._has_room(self._came, now):
            self._came[key] = _until(deadline)
        else:
            self._uncertain_until = max(self._uncertain_until, _until(deadline))
        return True

    def refuse(self, key: Key, grain: GrainId, deadline: float | None, now: float) -> bool:
        """Promise that the call has not come and never will be run here. False where that cannot be promised."""
        if key in self._refused:
            return True
        if key in self._came or now < self._uncertain_until or not self._has_room(self._refused, now):
            return False
        self._refused[key] = Refusal(grain, _until(deadline))
        return True

    def refused_of(self, grain: GrainId, now: float) -> list[tuple[Key, float | None]]:
        """The refused calls of a grain that moves away, each with the time left: they are refused there, too."""
        return [
            (key, None if refusal.until == math.inf else refusal.until - now)
            for key, refusal in self._refused.items()
            if refusal.grain == grain and now < refusal.until
        ]

    def forget(self, dead: frozenset[SiloAddress]) -> None:
        """Nobody forwards the calls of the dead any more."""
        self._came = {key: until for key, until in self._came.items() if key.origin not in dead}
        self._refused = {key: refusal for key, refusal in self._refused.items() if key.origin not in dead}

    def _has_room(self, table: dict[Key, float] | dict[Key, Refusal], now: float) -> bool:
        """Whether one more may be noted, once those are gone whose time has passed."""
        if len(table) < self._calls_max:
            return True
        if now - self._swept_at >= SWEEP_EVERY_S:
            self._swept_at = now
            for key in [key for key, until in self._came.items() if until <= now]:
                del self._came[key]
            for key in [key for key, refusal in self._refused.items() if refusal.until <= now]:
                del self._refused[key]
        return len(table) < self._calls_max


def _until(deadline: float | None) -> float:
    return math.inf if deadline is None else deadline
