"""A script's calls, written down: what each was, how it ended, and the grain moved where a mode wants it moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from silo.class_checks import MethodSpec
from silo.directory.addresses import GrainId
from silo.directory.errors import SerializationError, SiloError
from silo.kinds import GrainKind
from silo.reference import CallOptions, CallTarget, Reference, grain_id
from silo.serialization.registry import TypeRegistry
from silo.serialization.serializer import Serializer

RESULT_SHOWN_MAX = 200
"""How many characters of a value are shown."""


@dataclass(frozen=True, slots=True)
class Heard:
    """How one call of a script ended, or the script itself."""

    what: str
    """The call as it was written, such as `enter('ada')`."""
    value: object = None
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return shortened(f"raised {type(self.error).__name__}: {self.error}")
        return shortened(repr(self.value))


def shortened(text: str) -> str:
    """As much of it as is shown."""
    return text if len(text) <= RESULT_SHOWN_MAX else f"{text[:RESULT_SHOWN_MAX]}…"


class RecordingTarget:
    """Where a script's calls go: a `CallTarget` before another.

    Args:
        inner: makes the calls.
        home: the silo where the grain is to be activated first.
        move_before: moves the grain before the call of this number, where the mode wants that.
        move_during: likewise, while the call is out, or right after it.
    """

    at_once = None

    def __init__(
        self,
        inner: CallTarget,
        home: str,
        move_before: Callable[[int], Awaitable[None]],
        move_during: Callable[[int, asyncio.Future[Any]], Awaitable[None]],
    ) -> None:
        self.heard: list[Heard] = []
        """How the calls ended, in the order in which they were made."""
        self.running = 0
        """How many are out."""
        self._inner = inner
        self._home = home
        self._move_before = move_before
        self._move_during = move_during
        self._in_order = asyncio.Lock()

    async def call(
        self,
        grain: GrainId,
        kind: GrainKind,
        method: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        words = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        what = shortened(f"{method.name}({', '.join(words)})")
        self.heard.append(Heard(what, error=asyncio.CancelledError("it never ended")))
        number = len(self.heard)
        if options.hint is None:
            options = replace(options, hint=self._home)
        async with self._in_order:  # a call whose grain is moved first is still made before those that come after it
            await self._move_before(number)
            sent = asyncio.ensure_future(self._inner.call(grain, kind, method, args, kwargs, options))
        self.running += 1
        moving = asyncio.ensure_future(self._move_during(number, sent))
        try:
            value = await sent
        except BaseException as error:
            self.heard[number - 1] = Heard(what, error=error)
            raise
        finally:
            self.running -= 1
            await moving
        self.heard[number - 1] = Heard(what, value)
        return value


class Sameness:
    """Whether values, and ends of calls, are the same to a caller."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._codec = Serializer(registry, reference_type=Reference, reference_id=grain_id)

    def of_calls(self, one: Heard, other: Heard) -> bool:
        """Both gave the same value, or raised the same error; what the runtime's own errors say names places."""
        if one.error is None or other.error is None:
            return one.error is other.error and self.of_values(one.value, other.value)
        if type(one.error) is not type(other.error):
            return False
        return isinstance(one.error, SiloError) or str(one.error) == str(other.error)

    def of_values(self, one: object, other: object) -> bool:
        """They are equal, or they look the same as bytes, as a NaN does, or an object without a comparison."""
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        try:
            if one == other:
                return True
        except ValueError:  # such as numpy's: an array of answers is none
            pass
        try:
            return self._codec.encode(one) == self._codec.encode(other)
        except SerializationError:  # nobody's result, but an attribute of a grain: a lock, a connection
            return type(one).__eq__ is object.__eq__
