"""Silos that could not be reached, though nobody has declared them dead: their calls wait, and one dial serves all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from silo.directory.addresses import SiloAddress
from silo.routing.call import Call


class Unreached:
    """The calls made here that wait for such silos, each silo dialled anew no more often than every `every_s`.

    Their bound is the call book's, which has them all.

    Args:
        retry: sends a call again, by what is known then.
    """

    def __init__(self, retry: Callable[[Call], None], every_s: float) -> None:
        self._retry = retry
        self._every_s = every_s
        self.silos: dict[SiloAddress, tuple[list[Call], asyncio.TimerHandle]] = {}
        """Those that could not be reached: what waits for each, and when it is dialled again."""

    def wait(self, call: Call, silo: SiloAddress) -> None:
        """The call's silo could not be reached."""
        waiting = self.silos.get(silo)
        if waiting is None:
            timer = asyncio.get_running_loop().call_later(self._every_s, self.release, silo)
            waiting = self.silos[silo] = [], timer
        waiting[0].append(call)

    def release(self, silo: SiloAddress) -> None:
        """It may be reached now, or need not be any more: send what waits again, in order."""
        waiting = self.silos.pop(silo, None)
        if waiting is None:
            return
        calls, timer = waiting
        timer.cancel()
        for call in sorted(calls, key=lambda call: call.id):
            if not call.answered:
                self._retry(call)

    def release_all_but(self, stays: Callable[[SiloAddress], bool]) -> None:
        """Likewise for all silos but those."""
        for silo in [silo for silo in self.silos if not stays(silo)]:
            self.release(silo)

    def close(self) -> None:
        """No time comes any more."""
        for _, timer in self.silos.values():
            timer.cancel()
