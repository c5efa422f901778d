"""The grains that are measured."""

from __future__ import annotations

from silo import Grain, grain, soft_state

BALLAST_BYTES = 1024


@grain(kind="bench.counter")
class Counter(Grain):
    """As little as a grain can do for a call: an int in, an int out."""

    total: int = soft_state(default=0)

    async def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    async def where(self) -> str:
        return self.silo


@grain(kind="bench.parcel")
class Parcel(Grain):
    """A counter that takes 1 KiB along when it moves."""

    total: int = soft_state(default=0)
    ballast: bytes = soft_state(default=b"x" * BALLAST_BYTES)

    async def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    async def where(self) -> str:
        return self.silo
