"""The grains that are measured."""

from __future__ import annotations

import asyncio

from silo import Grain, grain, read_only, soft_state

BALLAST_BYTES = 1024


@grain(kind="bench.counter")
class Counter(Grain):
    """As little as a grain can do for a call: an int in, an int out."""

    total: int = soft_state(default=0)

    async def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    @read_only
    async def read(self) -> int:
        return self.total

    async def where(self) -> str:
        return self.silo


@grain(kind="bench.mirror")
class Mirror(Grain):
    """Gives back what it is given, of whatever size."""

    async def echo(self, body: bytes) -> bytes:
        return body

    async def where(self) -> str:
        return self.silo


@grain(kind="bench.fan")
class Fan(Grain):
    """Calls several counters at once."""

    def __init__(self) -> None:
        self._counters: list[Counter] = []

    async def know(self, keys: list[str]) -> None:
        self._counters = [self.grain(Counter, key) for key in keys]

    async def add(self, amount: int) -> int:
        return sum(await asyncio.gather(*(counter.add(amount) for counter in self._counters)))

    async def where(self) -> str:
        return self.silo


@grain(kind="bench.ring")
class Ring(Grain):
    """Calls the next of its kind within its own turn, as far as it is told to."""

    def __init__(self) -> None:
        self._next = ""

    async def know(self, key: str) -> None:
        self._next = key

    async def around(self, grains: int) -> int:
        return 1 if grains == 1 else 1 + await self.grain(Ring, self._next).around(grains - 1)

    async def where(self) -> str:
        return self.silo


@grain(kind="bench.parcel")
class Parcel(Grain):
    """A counter that takes 1 KiB along when it moves, or what it was told to."""

    total: int = soft_state(default=0)
    ballast: bytes = soft_state(default=b"x" * BALLAST_BYTES)

    async def load(self, size: int) -> None:
        self.ballast = b"x" * size

    async def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    async def where(self) -> str:
        return self.silo
