"""When a grain that is being looked for is tried again: signals in, orders out; time and chance are arguments.

A try asks the directory, and placement where that names nobody. What fails is tried again after a pause, which grows
with each try that has failed and with nothing else. Signals hasten the next try and never put it off:

- what may let the grain be placed now (a silo has joined, takes placements again, has room again) is a try at once, and
  so is an operator's order to start over, which also forgets the tries that have failed;
- a call is a try at once too, but no more than one in `call_wakes_every_s`, however many calls come;
- the time that was set for the next try stands, whatever is tried before it.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from silo.routing.limits import RoutingLimits, jittered_pause_s


class Chance(enum.StrEnum):
    """Why a grain that had no place may have one now."""

    MEMBERS_CHANGED = "the members have changed"
    UNCORDONED = "a silo takes new placements again"
    FREED = "a silo has room again"
    DIRECTORY_SETTLED = "the directory is whole again"


# --------------------------------------------------------------------------------------------------------------- states


class Asleep(msgspec.Struct, frozen=True, gc=False):
    """Nobody waits for the grain."""


class Trying(msgspec.Struct, frozen=True, gc=False):
    """A try is under way; calls that come join it."""

    began: float
    failures: int = 0
    """How many tries in a row have failed."""
    due: float | None = None
    """When the next try was set for, where this one was made before its time."""
    again: bool = False
    """Whether a chance has come that this try may have missed: should it fail, the next one is made at once."""


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The last try has failed; the next one is due later."""

    tried: float
    """When the last try began."""
    failures: int
    due: float
    hastened: float | None = None
    """When a try is made before its time, because of a call."""

    @property
    def wakes_at(self) -> float:
        """When the next try is made."""
        return self.due if self.hastened is None else min(self.due, self.hastened)


State = Asleep | Trying | Waiting

# -------------------------------------------------------------------------------------------------------------- signals


class Called(msgspec.Struct, frozen=True, gc=False):
    """A call wants the grain."""

    now: float


class ChanceCame(msgspec.Struct, frozen=True, gc=False):
    """The grain may have a place now."""

    why: Chance
    now: float


class TimeCame(msgspec.Struct, frozen=True, gc=False):
    """The time has come that `WakeAt` had set."""

    now: float


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The try has ended: the grain was found or placed, or it will not be."""


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The try has failed, and another one may not."""

    now: float
    chance: float
    """From 0 to 1: spreads the pauses of grains that failed together."""


class Deserted(msgspec.Struct, frozen=True, gc=False):
    """Nobody who waits is left."""


class StartedOver(msgspec.Struct, frozen=True, gc=False):
    """What failed before counts no more: an operator has said so."""

    now: float


Signal = Called | ChanceCame | TimeCame | Settled | Failed | Deserted | StartedOver

# --------------------------------------------------------------------------------------------------------------- orders


class Try(msgspec.Struct, frozen=True, gc=False):
    """Make a try now; no time is set any more."""


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Say `TimeCame` then, and at no other time that was set before."""

    at: float


class LetGo(msgspec.Struct, frozen=True, gc=False):
    """Let all that wait go: where they were found to belong, or with the error."""


class Ignore(msgspec.Struct, frozen=True, gc=False):
    """Do nothing, and say so."""

    why: str


Order = Try | WakeAt | LetGo | Ignore

ASLEEP: Final = Asleep()
_TRY: Final = (Try(),)
_LET_GO: Final = (LetGo(),)
IGNORED_BECAUSE: Final[dict[type, str]] = {
    Asleep: "nobody waits for the grain",
    Trying: "a try is under way, and its end shows who still waits",
    Waiting: "no try is under way",
}


def step(state: State, signal: Signal, limits: RoutingLimits) -> tuple[State, tuple[Order, ...]]:
    """What a signal makes of one grain's state, and what is to be done."""
    match state, signal:
        case Asleep(), Called(now):
            return Trying(now), _TRY
        case Trying(), Settled():
            return ASLEEP, _LET_GO
        case Trying(), Called():
            return state, ()  # it has joined
        case Trying(), ChanceCame():
            return msgspec.structs.replace(state, again=True), ()
        case Trying(), StartedOver():
            return msgspec.structs.replace(state, failures=0), ()
        case Trying(), Failed(now, chance):
            return _failed(state, now, chance, limits)

        case Waiting(), Called(now):
            return _hastened(state, now, limits)
        case Waiting(failures=failures, due=due), ChanceCame(now=now):
            return Trying(now, failures, due), _TRY
        case Waiting(failures=failures, due=due), TimeCame(now):
            if now < state.wakes_at:
                return state, (WakeAt(state.wakes_at),)
            return Trying(now, failures, due), _TRY
        case Waiting(due=due), StartedOver(now=now):
            return Trying(now, 0, due), _TRY
        case Waiting(), Deserted():
            return ASLEEP, _LET_GO

        case _:
            return state, (Ignore(IGNORED_BECAUSE[type(state)]),)


def _failed(state: Trying, now: float, chance: float, limits: RoutingLimits) -> tuple[State, tuple[Order, ...]]:
    """The pause grows; a time that was set before and has not come yet stands."""
    failures = state.failures + 1
    due = state.due
    if due is None or due <= now:
        due = now + jittered_pause_s(failures, limits, chance)
    if state.again:
        return Trying(now, failures, due), _TRY
    return Waiting(state.began, failures, due), (WakeAt(due),)


def _hastened(state: Waiting, now: float, limits: RoutingLimits) -> tuple[State, tuple[Order, ...]]:
    """A call has a try made at once, or as soon as one may be again after the last; those that come till then join."""
    if state.hastened is not None:
        return state, ()
    at = state.tried + limits.call_wakes_every_s
    if at <= now:
        return Trying(now, state.failures, state.due), _TRY
    if at >= state.due:
        return state, ()  # it is due before that
    return msgspec.structs.replace(state, hastened=at), (WakeAt(at),)
