"""The right to start turns: one number that the lease moves, one comparison to read it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from silo.directory.errors import SiloFenced

boot_clock: Final[Callable[[], float]] = partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Seconds since boot, those of a suspended machine included: a process that was frozen must notice how long."""


class LeasedRight:
    """A TurnRight whose deadline is set from the lease's thread and read from the event loop's.

    `deadline` alone crosses threads, as one assignment; everything else belongs to the event loop.
    """

    __slots__ = ("_clock", "_returned", "_why", "deadline", "leased_until")

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self._clock = clock
        self.deadline = -math.inf
        self.leased_until = -math.inf
        """The part of it that a renewal has given."""
        self._why: str | None = None
        self._returned: asyncio.Future[None] | None = None

    @property
    def clock(self) -> Callable[[], float]:
        """What tells the time that the deadline is in."""
        return self._clock

    def is_held(self) -> bool:
        return self._clock() < self.deadline

    @property
    def is_resigned(self) -> bool:
        return self._why is not None

    async def held(self) -> None:
        while self._why is None and not self.is_held():
            await self._extension()
        if self._why is not None:
            raise SiloFenced(f"this silo may start no turns any more: {self._why}")

    async def unleased(self) -> None:
        while (left_s := self.leased_until - self._clock()) > 0:  # noqa: ASYNC110 - time alone takes it away
            await asyncio.sleep(left_s)

    def is_leased(self) -> bool:
        return self._clock() < self.leased_until

    async def leased(self) -> None:
        while not self.is_leased():
            await self._extension()

    async def _extension(self) -> None:
        if self._returned is None:
            self._returned = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._returned)  # one waiter that gives up must not take the others along

    def extended(self) -> None:
        """The deadline has moved: whoever waits looks again."""
        returned, self._returned = self._returned, None
        if returned is not None and not returned.done():
            returned.set_result(None)

    def resign(self, why: str) -> None:
        """The right has ended for ever."""
        self.deadline = self.leased_until = -math.inf
        self._why = self._why or why
        self.extended()
