"""The grain of the demonstration: it counts, and would notice a call that was lost or run twice."""

from __future__ import annotations

from dataclasses import dataclass

from silo import Grain, grain, soft_state


@dataclass(frozen=True)
class Reading:
    """What a meter answers.

    Args:
        before: the number of the last call that it had run before this one; 0 for none.
        silo: where it ran.
    """

    before: int
    silo: str


@grain(kind="demo.meter")
class Meter(Grain):
    """Its caller numbers its calls; what it remembers travels with it."""

    last: int = soft_state(default=0)
    ballast: bytes = soft_state(default=b"x" * 1024)

    async def read(self, number: int) -> Reading:
        before, self.last = self.last, number
        return Reading(before, self.silo)
