"""One persistent state of one activation, as its grain sees it: the value, and the way to where it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from silo.persistence.contract import NO_ETAG, Change, StateBody, StoredState

if TYPE_CHECKING:
    from silo.persistence.grain_states import GrainStates

T = TypeVar("T")


class Persistent(Generic[T]):
    """A value of a grain that is stored under the grain's identity. Made by the runtime; declared by `persistent()`.

    It has been read when `on_activate` runs. What the grain changes is stored by `await write()`, and by nothing else.
    Reads, writes and clears of one state happen one after another; a write stores the value as it is when its turn
    comes. One that has been sent comes to its end even if the turn that waits for it is cancelled.

    All of them raise StorageUnavailable where nothing was read or changed, and GrainMoved in code that an activation
    has left behind. After StorageConflict and StorageOutcomeUnknown this activation ends with the turns that run; the
    next call is served by a new one, which has read what is stored.
    """

    __slots__ = ("_default", "_etag", "_exists", "_in_flight", "_lock", "_name", "_states", "_value", "is_read")

    def __init__(self, name: str, default: Callable[[], T], states: GrainStates) -> None:
        self._name = name
        self._default = default
        self._states = states
        self._value: T = cast("T", None)
        self._etag = NO_ETAG
        self._exists = False
        self._lock = asyncio.Lock()
        self._in_flight: asyncio.Task[Exception | None] | None = None
        self.is_read = False

    @property
    def value(self) -> T:
        """The value in memory; the default where nothing is stored."""
        self._require_read()
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        self._require_read()
        self._value = value

    @property
    def exists(self) -> bool:
        """Whether a value was stored when it was last read or written."""
        self._require_read()
        return self._exists

    @property
    def etag(self) -> str | None:
        """What tells the stored value from all earlier ones; None where none is stored."""
        return self._etag if self.exists else None

    async def read(self) -> None:
        """Take what is stored, in place of what is in memory.

        Raises:
            StoredStateUnreadable: another release, or a class that is not registered here, has written it.
        """
        await self._in_turn(self._read, "read")

    async def write(self) -> None:
        """Store the value.

        Raises:
            StorageConflict: something else is stored than this activation has read; nothing was written.
            StorageOutcomeUnknown: the value may have been stored.
            SerializationError: the value cannot be stored; the message names the class and the fix.
            StateTooLarge: it has too many bytes.
        """
        await self._in_turn(self._write, "write")

    async def clear(self) -> None:
        """Remove what is stored, and start from the default again. Raises what `write` raises."""
        await self._in_turn(self._clear, "clear")

    def __repr__(self) -> str:
        return f"<persistent state {self._name!r}: {self._value!r}>" if self.is_read else f"<unread {self._name!r}>"

    # ------------------------------------------------------------------------------------------------- for the runtime

    @property
    def is_busy(self) -> bool:
        """Whether something is on its way to where it is stored, or waits for that."""
        return self._lock.locked() or self._is_in_flight

    def hand_over(self) -> tuple[str, bool, T]:
        """The snapshot, after which nothing may be done to any state of the activation; raises where that cannot be."""
        self._states.hand_over(self._name, is_busy=self.is_busy)
        return self.snapshot

    @property
    def snapshot(self) -> tuple[str, bool, T]:
        """What travels with a migration, unsaved changes included: etag, whether a value is stored, and the value."""
        return (self._etag, self._exists, self._value)

    def restore(self, etag: str, exists: bool, value: T) -> None:
        """Take a snapshot, in place of reading."""
        self._etag, self._exists, self._value = etag, exists, value
        self.is_read = True

    def take(self, stored: StoredState) -> None:
        """Take what was read, in place of what is in memory; raises StoredStateUnreadable."""
        value = self._default() if stored.body is None else cast("T", self._states.decoded(self._name, stored.body))
        self.restore(stored.etag, stored.body is not None, value)

    def is_of(self, stored: StoredState) -> bool:
        """Whether what is in memory was made from this."""
        return self.is_read and self._etag == stored.etag

    # ------------------------------------------------------------------------------------------------------ operations

    async def _in_turn(self, operation: Callable[[], Coroutine[Any, Any, None]], verb: str) -> None:
        """Run an operation when those before it have ended."""
        await self._states.allowed(self._name)
        async with self._lock:
            if self._in_flight is not None and self._is_in_flight:  # its waiter was cancelled twice, and has gone
                await asyncio.wait([self._in_flight])
            await self._states.allowed(self._name)
            self._in_flight = self._states.spawn(_outcome_of(operation), f"{verb} {self._name!r}")
            failure = await _to_the_end(self._in_flight)
        if failure is not None:
            raise failure

    @property
    def _is_in_flight(self) -> bool:
        return self._in_flight is not None and not self._in_flight.done()

    async def _read(self) -> None:
        (stored,) = await self._states.fetch([self._name])
        self.take(stored)

    async def _write(self) -> None:
        self._require_read()
        body = self._states.encoded(self._name, self._value)
        await self._change(body)

    async def _clear(self) -> None:
        self._require_read()
        await self._change(None)
        self._value = self._default()

    async def _change(self, body: StateBody | None) -> None:
        etag = self._states.new_etag()
        await self._states.put(Change(self._name, self._etag, self._exists, etag, body))
        self._etag, self._exists = etag, body is not None

    def _require_read(self) -> None:
        if not self.is_read:
            raise RuntimeError(f"the persistent state {self._name!r} has not been read yet; on_activate is the place")


async def _outcome_of(operation: Callable[[], Coroutine[Any, Any, None]]) -> Exception | None:
    """How an operation ends: a value, since whoever waits for it may have gone."""
    try:
        await operation()
    except Exception as error:
        return error
    return None


async def _to_the_end(task: asyncio.Task[Exception | None]) -> Exception | None:
    """Wait for a task that a cancellation shall not cut short: what was sent to a store is heard of."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
