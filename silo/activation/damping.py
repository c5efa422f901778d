"""Grains that fail to start again and again, and for how long each is left alone. Plain code without a clock."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from silo.directory.addresses import GrainId

FREE_TRIES: Final = 3
"""How often in a row a grain may fail to start and be tried again at once."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_LAST_S: Final = 5.0
"""The pause after one more failure; it doubles with each, up to the last."""
FAILING_MAX: Final = 10_000
"""How many failing grains a silo remembers; the one that failed longest ago is forgotten first."""


class _Failing(NamedTuple):
    times: int
    until: float
    why: str


class Damping:
    """Remembers which grains of one silo failed to start, how often in a row, and until when they are left alone."""

    def __init__(self) -> None:
        self._failing: OrderedDict[GrainId, _Failing] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failing)

    def failed(self, grain: GrainId, why: str, now: float) -> None:
        """It failed to start once more."""
        before = self._failing.pop(grain, None)
        times = 1 if before is None else before.times + 1
        doublings = times - FREE_TRIES - 1
        pause_s = 0.0 if doublings < 0 else min(PAUSE_FIRST_S * 2.0 ** min(doublings, 32), PAUSE_LAST_S)
        self._failing[grain] = _Failing(times, now + pause_s, why)
        if len(self._failing) > FAILING_MAX:
            self._failing.popitem(last=False)

    def started(self, grain: GrainId) -> None:
        """It has started: what was before counts no more."""
        self._failing.pop(grain, None)

    def refusal(self, grain: GrainId, now: float) -> tuple[str, float] | None:
        """Why it is not tried now, and in how many seconds it will be; None where it may be tried."""
        failing = self._failing.get(grain)
        if failing is None or now >= failing.until:
            return None
        left_s = failing.until - now
        why = f"it failed to start {failing.times} times in a row, at last with {failing.why}"
        return f"{grain}: {why}; it is tried again in {left_s:.1f} s", left_s
