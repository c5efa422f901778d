"""In-memory timers of a grain: their ticks are turns of it, and a move takes them along with the time that is left."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from silo.class_checks import MethodSpec
from silo.directory.errors import InvalidGrain
from silo.logs import get_logger
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.routing.call import Answer, Call

if TYPE_CHECKING:
    from silo.activation.activation import Activation

log = get_logger(__name__)

TIMERS_MAX = 256
"""The most timers that one activation may have."""

TimerCallback = Callable[[], Coroutine[Any, Any, object]]


class Tick(Call, kw_only=True):
    """The call that a timer makes when it is due. It never leaves its silo: the timer goes with its grain instead."""

    of: GrainTimer
    keep_alive: bool


class GrainTimer:
    """One timer of a grain, as `self.register_timer` gives it."""

    __slots__ = (
        "_timers",
        "due_at",
        "handle",
        "interleave",
        "keep_alive",
        "method",
        "name",
        "period_s",
        "spec",
        "tick",
    )

    def __init__(self, timers: Timers, name: str, spec: MethodSpec, method: str) -> None:
        self._timers = timers
        self.name = name
        self.spec = spec
        self.method = method
        """The method's name; empty for a callback that stays behind when the grain moves."""
        self.period_s: float | None = None
        self.interleave = False
        self.keep_alive = False
        self.due_at = 0.0
        """In the loop's time; of no meaning while a tick waits or runs."""
        self.handle: asyncio.TimerHandle | None = None
        self.tick: Tick | None = None
        """What waits for its turn, or runs."""

    def cancel(self) -> None:
        """Tick no more. A tick that runs runs to its end; once cancelled, doing so again changes nothing."""
        self._timers.cancel(self)

    @property
    def is_active(self) -> bool:
        """Whether it will tick again, or is about to."""
        return self._timers.has(self)

    def left_s(self, now: float) -> float:
        """The seconds until it is due: none, where a tick waits for its turn."""
        return 0.0 if self.tick is not None else max(0.0, self.due_at - now)

    def __repr__(self) -> str:
        period = "once" if self.period_s is None else f"every {self.period_s} s"
        return f"<timer {self.name!r}, {period}>"


class Timers:
    """All timers of one activation, and the part of it that takes them along when it moves.

    They rest whenever the activation starts no turns. What falls due meanwhile ticks once, when it opens.
    """

    name = "timers"
    schema = 1

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self._by_name: dict[str, GrainTimer] = {}
        self._rests = not activation.starts_turns
        self._loop = activation.loop

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[GrainTimer]:
        return iter(tuple(self._by_name.values()))

    def has(self, timer: GrainTimer) -> bool:
        return self._by_name.get(timer.name) is timer

    def register(
        self,
        callback: TimerCallback | str,
        due_s: float,
        period_s: float | None,
        *,
        name: str | None,
        interleave: bool,
        keep_alive: bool,
    ) -> GrainTimer:
        """A new timer, or the one of that name which the activation has brought along, should it not be open yet.

        Raises:
            InvalidGrain: the callback is not async, or too many timers.
            ValueError: a time is not as it must be.
        """
        _require_times(due_s, period_s)
        method, function = self._resolved(callback)
        name = name or method or getattr(callback, "__name__", "")
        if not name:
            raise InvalidGrain(f"the timer of {callback!r} needs a name")
        timer = self._by_name.get(name)
        if timer is not None and self._activation.is_open:
            timer.cancel()
            timer = None
        if timer is None:
            if len(self._by_name) >= TIMERS_MAX:
                raise InvalidGrain(f"a grain has at most {TIMERS_MAX} timers")
            timer = self._by_name[name] = GrainTimer(self, name, _spec(name, function, interleave=interleave), method)
            timer.due_at = self._loop.time() + due_s
        timer.spec = _spec(name, function, interleave=interleave)
        timer.method = method
        timer.period_s = period_s
        timer.interleave = interleave
        timer.keep_alive = keep_alive
        self._arm(timer)
        return timer

    def _resolved(self, callback: TimerCallback | str) -> tuple[str, Callable[[Any], Coroutine[Any, Any, object]]]:
        """The name of the grain's method that this is, if it is one, and what to call with the instance."""
        cls = self._activation.kind.cls
        if isinstance(callback, str):
            function = getattr(cls, callback, None)
            if not inspect.iscoroutinefunction(function):
                raise InvalidGrain(f"{cls.__qualname__} has no async method {callback!r} for a timer to call")
            return callback, function
        if not inspect.iscoroutinefunction(callback):
            raise InvalidGrain(f"a timer calls an async method of its grain, and {callback!r} is not async")
        method: str = getattr(callback, "__name__", "")
        if isinstance(getattr(callback, "__self__", None), cls):
            function = getattr(cls, method, None)
            if inspect.iscoroutinefunction(function):
                return method, function
        return "", lambda _instance: callback()

    # ------------------------------------------------------------------------------------------------------ its ticks

    def _arm(self, timer: GrainTimer) -> None:
        if timer.handle is not None:
            timer.handle.cancel()
            timer.handle = None
        if not self._rests and timer.tick is None:
            timer.handle = self._loop.call_at(timer.due_at, self._fall_due, timer)

    def _fall_due(self, timer: GrainTimer) -> None:
        timer.handle = None
        activation = self._activation
        timer.tick = Tick(
            activation.new_call_id(),
            activation.id,
            timer.spec.name,
            str(activation.id),
            None,
            self._ticked,
            args=(),
            kwargs={},
            spec=timer.spec,
            of=timer,
            keep_alive=timer.keep_alive,
        )
        activation.admit_tick(timer.tick)

    def _ticked(self, call: Call, answer: Answer) -> None:
        assert isinstance(call, Tick)
        timer = call.of
        if timer.tick is not call:
            return
        timer.tick = None
        if answer.error is not None and self.has(timer):
            log.warning("grain.timer_failed", grain=str(self._activation.id), timer=timer.name, exc_info=answer.error)
        if not self.has(timer):
            return
        if timer.period_s is None:
            del self._by_name[timer.name]
        else:
            timer.due_at = self._loop.time() + timer.period_s
            self._arm(timer)

    def cancel(self, timer: GrainTimer) -> None:
        if not self.has(timer):
            return
        del self._by_name[timer.name]
        if timer.handle is not None:
            timer.handle.cancel()
            timer.handle = None
        if timer.tick is not None and timer.tick.task is None:
            self._activation.cancel(timer.tick)

    # ------------------------------------------------------------------------------------------ rest, and a new place

    def rest(self) -> None:
        """No more ticks until `resume`; the time goes on."""
        self._rests = True
        for timer in self:
            self._arm(timer)

    def resume(self) -> None:
        self._rests = False
        for timer in self:
            self._arm(timer)

    def take_back(self, calls: Iterable[Call]) -> list[Call]:
        """What waits for its turn, without the ticks: their timers are due as soon as the activation opens again."""
        others: list[Call] = []
        for call in calls:
            if isinstance(call, Tick):
                call.of.tick = None
                call.of.due_at = self._loop.time()
            else:
                others.append(call)
        return others

    def on_dehydrate(self, context: DehydrateContext) -> None:
        now = self._loop.time()
        context["timers"] = [
            (timer.name, timer.method, timer.left_s(now), timer.period_s, timer.interleave, timer.keep_alive)
            for timer in self
            if timer.method
        ]

    def on_rehydrate(self, context: RehydrateContext) -> None:
        now = self._loop.time()
        for name, method, left_s, period_s, interleave, keep_alive in context["timers"]:
            timer = self.register(method, left_s, period_s, name=name, interleave=interleave, keep_alive=keep_alive)
            timer.due_at = now + left_s


def _spec(name: str, function: Callable[..., Any], *, interleave: bool) -> MethodSpec:
    return MethodSpec(name, function, inspect.Signature(), 0, 0, always_interleave=interleave)


def _require_times(due_s: float, period_s: float | None) -> None:
    if isinstance(due_s, bool) or not 0 <= due_s < math.inf:
        raise ValueError(f"due_s={due_s!r}: finite seconds from 0 on are wanted")
    if period_s is not None and (isinstance(period_s, bool) or not 0 < period_s < math.inf):
        raise ValueError(f"period_s={period_s!r}: finite seconds above 0 are wanted, or None for a single tick")
