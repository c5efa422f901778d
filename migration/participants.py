"""Participants: the parts of a grain that take soft state out before a move and put it back after it.

What a participant does not hand over does not travel. Dehydration and rehydration are synchronous and do no I/O: the
grain stands still meanwhile.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from silo.directory.errors import InvalidGrain, SiloError
from silo.migration.lifecycle import Arrival, Departure

PARTICIPANTS_MAX = 256
"""The most participants that one activation may have."""
GRAIN_PART = "grain"
SOFT_STATE_PREFIX = "soft_state/"
PARTICIPANT_PREFIX = "participant/"
SYSTEM_PREFIX = "system/"
HOOK_ERRORS = (Exception, asyncio.CancelledError)
"""How a synchronous hook fails: nothing can have cancelled it, so a CancelledError is its own doing."""


class ParticipantFailed(SiloError, RuntimeError):
    """A part of a grain could not hand over or take back its soft state; `part` names it, the cause is attached."""

    def __init__(self, message: str, part: str = "") -> None:
        super().__init__(message)
        self.part = part


class DehydrationFailed(ParticipantFailed):
    """A part could not hand over its soft state; the move is aborted and the grain stays where it is."""


class RehydrationFailed(ParticipantFailed):
    """A part could not take its soft state back; the target refuses the grain, which goes on at its source."""


class Nothing(enum.Enum):
    """Told apart from every value, None included: this part has nothing to hand over."""

    NOTHING = enum.auto()


NOTHING = Nothing.NOTHING


class DehydrateContext(MutableMapping[str, Any]):
    """Where one participant puts what shall travel: names of its own choice, and values that can be serialized."""

    __slots__ = ("_departure", "_open", "_values")

    def __init__(self, departure: Departure | None = None) -> None:
        self._departure = departure or Departure()
        self._values: dict[str, Any] = {}
        self._open = True

    @property
    def reason(self) -> str:
        """Why the grain moves, as text."""
        return self._departure.reason

    @property
    def target(self) -> str:
        """The name of the silo that it goes to."""
        return self._departure.target

    @property
    def deactivation_error(self) -> BaseException | None:
        """What `on_deactivate` raised, where it did."""
        return self._departure.deactivation_error

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._require_open()
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"names in a dehydrate context are str, not {type(name).__name__}: {name!r}")
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        self._require_open()
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"

    def taken(self) -> dict[str, Any]:
        """Close the context, and give what was put in."""
        self._open = False
        return self._values

    def _require_open(self) -> None:
        if not self._open:
            raise RuntimeError("on_dehydrate has returned: what is put into its context now would not travel")


class RehydrateContext(Mapping[str, Any]):
    """What one participant put into its context at the source; read-only."""

    __slots__ = ("_arrival", "_values")

    def __init__(self, values: Mapping[str, Any], arrival: Arrival | None = None) -> None:
        self._values = dict(values)
        self._arrival = arrival or Arrival()

    @property
    def reason(self) -> str:
        """Why the grain moved, as text."""
        return self._arrival.reason

    @property
    def version(self) -> int:
        """The grain kind's `version` at the source."""
        return self._arrival.version

    @property
    def app_version(self) -> str:
        """The application's version at the source; empty where it has none."""
        return self._arrival.app_version

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: object) -> None:
        raise TypeError("a rehydrate context is read-only")

    def __delitem__(self, name: str) -> None:
        raise TypeError("a rehydrate context is read-only")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"


@runtime_checkable
class Participant(Protocol):
    """An object that hands soft state over when its grain moves.

    Add it where the grain is constructed, so that it is there when the grain arrives: `on_rehydrate` runs before
    `on_activate`, and only if the participant of that name was there at the source. Two more members are optional:
    `schema: int` (1 if missing) says in which form the values are, and `upgrade(from_schema, values)` turns the values
    of an older form into the present one.
    """

    @property
    def name(self) -> str:
        """Tells it apart from the grain's other participants, on both silos."""
        ...

    def on_dehydrate(self, context: DehydrateContext, /) -> None:
        """Put what shall travel into the context. Synchronous."""
        ...

    def on_rehydrate(self, context: RehydrateContext, /) -> None:
        """Take it back. Synchronous."""
        ...


class Part(Protocol):
    """One entry of a migration payload, at either end: the grain's hooks, a soft-state field, or a participant."""

    @property
    def name(self) -> str:
        """The entry's name."""
        ...

    @property
    def schema(self) -> int:
        """The form in which it writes, and up to which it reads."""
        ...

    @property
    def skippable(self) -> bool:
        """Whether a kind that says `on_participant_error="skip"` may go on without it."""
        ...

    def dehydrate(self, departure: Departure) -> object:
        """The value that shall travel, or NOTHING."""
        ...

    def rehydrate(self, value: object, schema: int, arrival: Arrival) -> None:
        """Put back what came, written in this schema or in an older one."""
        ...


@dataclass(frozen=True, slots=True)
class ContextPart:
    """A part that hands over what its hooks put into a context: the grain itself, a participant, or a system part."""

    name: str
    on_dehydrate: Callable[[DehydrateContext], object] | None
    on_rehydrate: Callable[[RehydrateContext], object] | None
    schema: int = 1
    upgrade: Callable[[int, dict[str, Any]], Mapping[str, Any]] | None = None
    skippable: bool = True

    def dehydrate(self, departure: Departure) -> object:
        """What `on_dehydrate` put into its context; an empty mapping still tells the target that the part was here."""
        if self.on_dehydrate is None:
            return NOTHING if self.on_rehydrate is None else {}
        context = DehydrateContext(departure)
        _require_none("on_dehydrate", self.on_dehydrate(context))
        return context.taken()

    def rehydrate(self, value: object, schema: int, arrival: Arrival) -> None:
        """Upgrade the values where they are older, and give them to `on_rehydrate`."""
        if not isinstance(value, dict):
            raise TypeError(f"the entry holds a {type(value).__name__} where a dict of names was expected")
        values: Mapping[str, Any] = cast("dict[str, Any]", value)
        if schema < self.schema:
            values = upgraded(self.upgrade, schema, self.schema, cast("dict[str, Any]", value))
        if self.on_rehydrate is not None:
            _require_none("on_rehydrate", self.on_rehydrate(RehydrateContext(values, arrival)))
        elif values:
            raise LookupError(f"the values {sorted(values)} arrived, and there is no on_rehydrate that would take them")


class ParticipantSet:
    """The participants of one activation, in the order in which they were added."""

    def __init__(self) -> None:
        self._by_name: dict[str, Participant] = {}

    def add(self, participant: Participant) -> None:
        """Take one in.

        Raises:
            InvalidGrain: it lacks a hook, has an async one, or another participant has its name.
        """
        check_participant(participant)
        name = participant.name
        if self._by_name.get(name, participant) is not participant:
            raise InvalidGrain(f"the grain already has another participant named {name!r}")
        if len(self._by_name) >= PARTICIPANTS_MAX and name not in self._by_name:
            raise InvalidGrain(f"a grain has at most {PARTICIPANTS_MAX} participants")
        self._by_name[name] = participant

    def remove(self, participant: Participant) -> None:
        """Let one go: it no longer takes part in moves. One that is not there is no error."""
        if self._by_name.get(participant.name) is participant:
            del self._by_name[participant.name]

    def __iter__(self) -> Iterator[Participant]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)


def check_participant(participant: Participant) -> None:
    """Raise InvalidGrain where the object cannot take part in a move."""
    name = getattr(participant, "name", None)
    if not isinstance(name, str) or not name:
        raise InvalidGrain(f"{participant!r} is no participant: it needs a `name`, a str that is not empty")
    for hook in ("on_dehydrate", "on_rehydrate"):
        function = getattr(participant, hook, None)
        if not callable(function):
            raise InvalidGrain(f"participant {name!r} has no method {hook}(context)")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidGrain(
                f"{hook} of participant {name!r} is async; it runs while the grain stands still: make it a plain def"
            )
    schema = getattr(participant, "schema", 1)
    if type(schema) is not int or schema < 1:
        raise InvalidGrain(f"the schema of participant {name!r} is an int from 1 on, not {schema!r}")


def participant_part(participant: Participant, prefix: str = PARTICIPANT_PREFIX) -> ContextPart:
    """A participant as a part of the payload; with SYSTEM_PREFIX one of the runtime's own, which is never skipped."""
    return ContextPart(
        prefix + participant.name,
        participant.on_dehydrate,
        participant.on_rehydrate,
        schema=getattr(participant, "schema", 1),
        upgrade=getattr(participant, "upgrade", None),
        skippable=prefix != SYSTEM_PREFIX,
    )


def upgraded(upgrade: Callable[[int, Any], Any] | None, schema: int, wanted: int, value: Any) -> Any:
    """The value in the wanted schema; raises LookupError where there is no way from the one it was written in."""
    if upgrade is None:
        raise LookupError(
            f"it was written in schema {schema}, schema {wanted} is wanted here, and there is no `upgrade`"
        )
    return upgrade(schema, value)


def _require_none(hook: str, result: object) -> None:
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"{hook} returned an awaitable; it runs while the grain stands still and must be synchronous")
