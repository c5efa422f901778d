"""The calls made here that came back without having run: each is sent again, until its deadline.

What keeps a call from its grain passes, and one that ended before its deadline might have been answered. So tries are
bounded by time alone: by the pauses between them, and by the deadline, at which a call in circles ends as well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from silo.directory.addresses import GrainId
from silo.directory.errors import CallExpired, SiloError
from silo.routing.call import Answer, Call
from silo.routing.limits import RoutingLimits, retry_pause_s

if TYPE_CHECKING:
    from silo.telemetry import Telemetry

LEGS_PER_TRY = 1_024
"""By how much the legs of a call's next try begin above: more than one try ever has, so that what is said late of the
try before is known by it."""
TRIES_AT_ONCE = 2
"""How often a call that came back is sent again without a pause."""


class Comebacks:
    """Sends them again, and knows those that pause before that. Their bound is the call book's, which has them all.

    Args:
        route: sends a call by what is known then, before those of its lane that were made after it.
    """

    def __init__(
        self,
        route: Callable[[Call], None],
        limits: RoutingLimits,
        rng: random.Random,
        telemetry: Telemetry | None,
    ) -> None:
        self._route = route
        self._limits = limits
        self._rng = rng
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._paused: dict[tuple[str, GrainId], tuple[list[Call], asyncio.TimerHandle]] = {}
        """Those that came back more than once, of each caller to each grain, and when they are tried again."""

    def again(self, call: Call, why: SiloError) -> None:
        """Its grain was not where it was sought: look again. Whoever sent it back may know more than is known here.

        That takes a moment to come round, so from the third time on there is a pause, which grows.
        """
        if self._begins_anew(call, why):
            call.tries += 1
            at_once = call.tries <= TRIES_AT_ONCE
            self.send(call, 0.0 if at_once else retry_pause_s(call.tries - TRIES_AT_ONCE, self._limits, self._rng))

    def elsewhere(self, call: Call, why: SiloError) -> None:
        """It was kept from a place for its grain, as by a silo that is full: have it placed anew, or wait for room."""
        if self._begins_anew(call, why):
            call.tries = max(call.tries, 1)  # it has been out: no bound refuses it now
            self.send(call, 0.0)

    def _begins_anew(self, call: Call, why: SiloError) -> bool:
        """Whether there is time left for another try, with all its hops."""
        call.obstacle = why
        if call.deadline is not None and self._loop.time() >= call.deadline:
            what = f"{call.grain}.{call.method}: the deadline passed before the call was started: {why}"
            call.on_answer(call, Answer.failed(CallExpired(what)))
            return False
        call.hops = 0
        call.leg = (call.leg // LEGS_PER_TRY + 1) * LEGS_PER_TRY
        return True

    def send(self, call: Call, pause_s: float) -> None:
        """Send it again after so long; together with those of its caller to its grain that pause already, in order."""
        call.target = None
        if self._telemetry is not None:
            self._telemetry.retried()
        lane = call.caller, call.grain
        paused = self._paused.get(lane)
        if paused is not None:
            paused[0].append(call)
        elif pause_s:
            self._paused[lane] = [call], self._loop.call_later(pause_s, self._resume, lane)
        else:
            self._route(call)

    def _resume(self, lane: tuple[str, GrainId]) -> None:
        calls, timer = self._paused.pop(lane)
        timer.cancel()
        for call in sorted(calls, key=lambda call: call.id):
            if not call.answered:
                self._route(call)

    def hasten(self) -> None:
        """Much may have changed: send all that pause again."""
        for lane in list(self._paused):
            self._resume(lane)

    def close(self) -> None:
        """No time comes any more."""
        for _, timer in self._paused.values():
            timer.cancel()
