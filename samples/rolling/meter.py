"""The grain that is called: it counts its turns, so that its caller finds out whether one was lost or run twice."""

from __future__ import annotations

from dataclasses import dataclass

from silo import ActivationReason, Grain, grain, soft_state


@dataclass(frozen=True)
class Reading:
    """What a meter answers.

    Args:
        turns: how many calls it has run, this one included.
        before: the number of the call that it ran before this one; 0 for none.
        moves: how often it has moved.
        silo: where it ran.
    """

    turns: int
    before: int
    moves: int
    silo: str


@grain(kind="sample.meter")
class Meter(Grain):
    """Its one caller numbers its calls from 1 on; all that it remembers travels with it."""

    turns: int = soft_state(default=0)
    last: int = soft_state(default=0)
    moves: int = soft_state(default=0)
    ballast: bytes = soft_state(default=b"x" * 1024)

    async def on_activate(self, reason: ActivationReason) -> None:
        if reason is ActivationReason.MIGRATION:
            self.moves += 1

    async def read(self, number: int) -> Reading:
        before, self.last = self.last, number
        self.turns += 1
        return Reading(self.turns, before, self.moves, self.silo)
