"""The places of one silo: which activations begin now, and which wait for that; the shell of `intake`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from silo.activation.activation import Activation
from silo.activation.intake import Intake, IntakeLimits
from silo.directory.errors import CallExpired
from silo.routing.call import Answer, Call

CAP_GROWS_EVERY_S = 0.001
"""How often, at most, it is looked whether a silo that warms up may begin more at a time."""


@dataclass(frozen=True, slots=True)
class _PutOff:
    """An activation that waits for a place."""

    begin: Callable[[], None]
    end: Callable[[], None] = lambda: None
    """Called instead where it is here no more."""


class Places:
    """What activations begin from: so many at a time, and the others in order.

    Args:
        drop: takes out an activation that nobody wants any more.
    """

    def __init__(self, limits: IntakeLimits, drop: Callable[[Activation], None]) -> None:
        self._limits = limits
        self._drop = drop
        self._loop: asyncio.AbstractEventLoop  # given by `open`
        self._intake: Intake[Activation]  # made by `open`, from when on the silo's age counts
        self._put_off: dict[Activation, _PutOff] = {}
        """Those that wait for a place."""
        self._cap_grows: asyncio.TimerHandle | None = None

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._intake = Intake(self._limits, loop.time())

    def close(self) -> None:
        """Nobody begins any more."""
        self._intake.close()
        if self._cap_grows is not None:
            self._cap_grows.cancel()

    def abandon(self) -> None:
        """Declared dead: nobody begins any more, and nobody waits for that."""
        self._intake.close()
        for put_off in self._put_off.values():
            put_off.end()
        self._put_off.clear()

    @property
    def in_flight(self) -> int:
        """How many activations are being made here because of calls."""
        return self._intake.in_flight

    @property
    def waiting_count(self) -> int:
        """How many wait for that to begin."""
        return self._intake.waiting_count

    def in_flight_max(self) -> int:
        """How many this silo begins at a time, by now."""
        return self._intake.cap(self._loop.time())

    def take(self, activation: Activation, *, inner: bool) -> bool:
        """Whether it may begin at once, and has a place from here on; if not, `wait` has it begin in its turn.

        Args:
            inner: whether it is a grain that calls it.
        """
        return self._intake.enter(activation, self._loop.time(), inner=inner)

    def wait(self, activation: Activation, begin: Callable[[], None]) -> None:
        """Have it begin when there is a place for it; a call for it is about to be admitted."""
        self._put_off[activation] = _PutOff(begin)
        self._begin_next(activation)

    def set_aside(self, activation: Activation) -> None:
        """It waits for what no activation brings about: others have its place meanwhile."""
        self._intake.set_aside(activation)
        self._begin_next()

    async def regained(self, activation: Activation) -> None:
        """Wait for a place again, for one that was set aside."""
        if not self._intake.come_back(activation, self._loop.time()):
            placed = asyncio.Event()
            self._put_off[activation] = _PutOff(placed.set, placed.set)
            self._begin_next()
            await placed.wait()

    def _begin_next(self, newest: Activation | None = None) -> None:
        """Begin those that have waited for a place, where there is one, and drop those that nobody wants any more.

        Args:
            newest: one for which a call is about to be admitted.
        """
        now = self._loop.time()
        while (activation := self._intake.next(now)) is not None:
            put_off = self._put_off.pop(activation)
            overdue = _overdue(activation, now)
            if activation is newest or len(overdue) < activation.turns.waiting_count:
                put_off.begin()
                continue
            self._intake.leave(activation)
            self._drop(activation)
            put_off.end()
            for call in overdue:
                what = "the deadline passed while the grain waited for a place among those that its silo begins"
                call.on_answer(call, Answer.failed(CallExpired(f"{call.grain}.{call.method}: {what}")))
        self._watch_cap(now)

    def _watch_cap(self, now: float) -> None:
        """A silo that warms up may begin more by and by, though no place is given back."""
        if self._cap_grows is None and self._intake.waiting_count:
            at = self._intake.grows_at(now)
            if at is not None:
                self._cap_grows = self._loop.call_at(max(at, now + CAP_GROWS_EVERY_S), self._cap_grew)

    def _cap_grew(self) -> None:
        self._cap_grows = None
        self._begin_next()

    def leave(self, activation: Activation) -> None:
        """It needs a place no more, and waits for none."""
        self._intake.leave(activation)
        if self._put_off:
            put_off = self._put_off.pop(activation, None)
            if put_off is not None:
                put_off.end()
            self._begin_next()

    def gone(self, activation: Activation) -> None:
        """It is here no more; should it wait for a place, it does so in vain."""
        if activation in self._put_off:
            self.leave(activation)

    def hasten(self, activation: Activation) -> None:
        """A grain calls an activation that waits for a place, and may be in the way of one that has one."""
        if activation in self._put_off:
            self._intake.hasten(activation)
            self._begin_next()

    def lend(self, activation: Activation) -> None:
        """It waits for another grain, which may have to be activated here."""
        self._intake.lend(activation)
        if self._put_off:
            self._begin_next()

    def take_back(self, activation: Activation) -> None:
        self._intake.take_back(activation)


def _overdue(activation: Activation, now: float) -> list[Call]:
    """The calls that wait for it though their deadlines have passed: those of other silos have no timer here."""
    return [call for call in activation.turns.waiting if call.deadline is not None and now >= call.deadline]
