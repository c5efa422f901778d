"""The calls of other silos that are here, waiting or running: as many and as large as this silo may have."""

from __future__ import annotations

import asyncio

from silo.directory.addresses import SiloAddress
from silo.directory.errors import Overloaded
from silo.routing.call import Call

GIVEN_UP_MAX = 4096
"""Cancelled calls that are remembered in case they come yet."""


class Arrivals:
    """Each call that came from another silo, from then on until it is answered, sent on, or given up.

    Args:
        calls_max: how many there may be; more are refused as Overloaded.
        bytes_max: how large they may be together, likewise.
    """

    def __init__(self, calls_max: int, bytes_max: int) -> None:
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._calls: dict[tuple[SiloAddress | None, int], Call] = {}
        self._empty: asyncio.Future[None] | None = None
        self.given_up: dict[tuple[SiloAddress | None, int], None] = {}
        """Calls that were cancelled before they came, oldest first."""

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, call: Call, *, forced: bool) -> Overloaded | None:
        """Take a call in, or say why there is no room for it.

        Args:
            forced: there is room for it: it was admitted elsewhere already.
        """
        if (call.origin, call.id) in self._calls:
            self.remove(call.origin, call.id)
        if not forced and not self.has_room_for(call):
            if len(self._calls) >= self._calls_max:
                what = f"{len(self._calls)} calls of other silos wait or run here, as many as may"
                return Overloaded(what, "silo_queue_calls_max")
            what = f"calls of other silos, of {self._bytes} bytes, wait or run here; {call.size} more are too many"
            return Overloaded(what, "silo_queue_bytes_max")
        self._bytes += call.measure()
        self._calls[call.origin, call.id] = call
        return None

    def has_room_for(self, call: Call) -> bool:
        """Whether it would be taken in now."""
        if not self._calls:
            return self._calls_max > 0
        return len(self._calls) < self._calls_max and self._bytes + call.measure() <= self._bytes_max

    def has(self, origin: SiloAddress, call_id: int) -> bool:
        """Whether the call is here."""
        return (origin, call_id) in self._calls

    def remove(self, origin: SiloAddress | None, call_id: int) -> Call | None:
        """Let go of a call; answers with it, if it was here."""
        call = self._calls.pop((origin, call_id), None)
        if call is not None:
            self._bytes -= call.size
            if self._empty is not None and not self._calls and not self._empty.done():
                self._empty.set_result(None)
        return call

    async def emptied(self) -> None:
        """Wait until none is here."""
        while self._calls:
            if self._empty is None or self._empty.done():
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._empty)

    def give_up(self, origin: SiloAddress | None, call_id: int) -> None:
        """A call is cancelled that is not here: it has ended, or it is still being forwarded and must not run late."""
        self.given_up[(origin, call_id)] = None
        if len(self.given_up) > GIVEN_UP_MAX:
            del self.given_up[next(iter(self.given_up))]

    def was_given_up(self, origin: SiloAddress | None, call_id: int) -> bool:
        """Whether a call that comes now was cancelled before; it is asked for once."""
        if (origin, call_id) not in self.given_up:
            return False
        del self.given_up[(origin, call_id)]
        return True
