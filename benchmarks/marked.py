"""Moments in the life of a call: importing this has both ends of the direct lane note when they write and are given
something, and brings a grain that notes when its turn begins.

For `benchmarks.anatomy` alone: `silo run benchmarks.marked` is the silo that it calls.
"""

from __future__ import annotations

import time
from typing import Any, Final

from silo import Grain, grain
from silo.messaging import direct_transport

WRITE, RECEIVED, TURN = "write", "received", "turn"
MARKS: Final[dict[str, list[int]]] = {WRITE: [], RECEIVED: [], TURN: []}
"""Times in nanoseconds, of a clock that all processes of a machine share."""


def _mark_the_lane() -> None:
    """Have each end of the lane note what it does; once, however often it is asked for."""
    lane: Any = direct_transport.FramedConnection
    write, received = lane.write, lane.data_received
    writes, receipts, clock = MARKS[WRITE], MARKS[RECEIVED], time.perf_counter_ns

    def marked_write(self: Any, body: bytes) -> Any:
        writes.append(clock())
        return write(self, body)

    def marked_received(self: Any, data: bytes) -> None:
        receipts.append(clock())
        received(self, data)

    lane.write, lane.data_received = marked_write, marked_received


_mark_the_lane()


@grain(kind="bench.marked")
class Marked(Grain):
    """A counter that notes when its turns begin, and tells what was noted in its silo."""

    def __init__(self) -> None:
        self._total = 0

    async def add(self, amount: int) -> int:
        MARKS[TURN].append(time.perf_counter_ns())
        self._total += amount
        return self._total

    async def marks(self) -> dict[str, list[int]]:
        return {name: list(times) for name, times in MARKS.items()}

    async def where(self) -> str:
        return self.silo
