"""The persistent states of one activation: read together, guarded by its epoch, and given up together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from silo.activation.turn_context import current_turn
from silo.directory.addresses import GrainId
from silo.directory.errors import (
    GrainMoved,
    SerializationError,
    StateTooLarge,
    StorageConflict,
    StorageOutcomeUnknown,
    StorageUnavailable,
    StoredStateUnreadable,
)
from silo.directory.membership import TurnRight
from silo.logs import get_logger
from silo.migration.payload import ValueCodec
from silo.persistence.contract import (
    Change,
    Claim,
    Conflicting,
    GrainStorage,
    StateBody,
    StoredState,
    Superseded,
    Written,
)
from silo.persistence.declaration import PersistentField
from silo.persistence.persistent import Persistent
from silo.tasks import Tasks

log = get_logger(__name__)

STATE_SCHEMA = 1
"""The form of every stored value, until values can be upgraded."""


class Holder(Protocol):
    """The activation whose states they are."""

    @property
    def id(self) -> GrainId: ...

    @property
    def epoch(self) -> int: ...

    @property
    def activation_id(self) -> str: ...

    def check_alive(self) -> None:
        """Raises GrainMoved for code that an activation has left behind."""
        ...

    def request_deactivation(self) -> None:
        """End this activation once its turns have ended."""
        ...


@dataclass(frozen=True, slots=True)
class StorageParts:
    """What the states of all activations of one silo share.

    Args:
        codec: writes plain values alone: what is stored is read by other processes and later releases.
        right: of the silo, which lets nothing take effect while it is fenced.
        state_bytes_max: the largest value, in bytes.
        new_etag: gives one that was never given before.
    """

    storage: GrainStorage
    codec: ValueCodec
    right: TurnRight
    state_bytes_max: int
    new_etag: Callable[[], str]
    tasks: Tasks = field(default_factory=lambda: Tasks("storage"))

    async def close(self) -> None:
        await self.tasks.close()
        await self.storage.close()


class GrainStates:
    """The states of one activation. What their grain sees of each is a `Persistent`."""

    def __init__(
        self, holder: Holder, instance: object, fields: Sequence[PersistentField], parts: StorageParts
    ) -> None:
        self.stale = ""
        """Why memory and storage are known to differ, or may; empty where they do not. It stays so."""
        self._holder = holder
        self._parts = parts
        self._states: dict[str, Persistent[Any]] = {}
        self._handed_over = False
        """For a move, so that what is done to them now would be lost."""
        for each in fields:
            state = self._states[each.name] = Persistent(each.name, each.default, self)
            each.bind(instance, state)

    # -------------------------------------------------------------------------------------------------- for activations

    async def read_all(self) -> Superseded | None:
        """Read all; what it answers, if anything, is who has claimed them under a higher epoch.

        Raises:
            StorageUnavailable, StoredStateUnreadable: they could not be read, which never means that there are none.
        """
        await self._parts.right.held()
        answer = await self._parts.storage.read(self._claim, list(self._states))
        if isinstance(answer, Superseded):
            return answer
        for state, stored in zip(self._states.values(), answer, strict=True):
            if not state.is_of(stored):
                state.take(stored)
        return None

    async def settle(self) -> None:
        """Read what did not come with a move, since the source's release had no such state.

        Raises:
            StorageConflict: they have been claimed under a higher epoch.
        """
        if all(state.is_read for state in self._states.values()):
            return
        if await self.read_all() is not None:
            raise self._superseded(next(iter(self._states)))

    async def regain(self, departed_epoch: int) -> None:
        """A move did not come about. Where the grain may have been another's meanwhile, see what is stored now.

        What was not saved stays as it is, unless the other one has written. Where nothing can be read the activation
        ends, as after a conflict.

        Args:
            departed_epoch: of the entry that the activation had when the move began.
        """
        self._handed_over = False
        if self._holder.epoch == departed_epoch:
            return
        try:
            superseded = await self.read_all()
        except (StorageUnavailable, StoredStateUnreadable) as error:
            self._give_up(f"it could not be read again after a move: {error}")
            return
        if superseded is not None:
            self._give_up(f"it has been claimed under epoch {superseded.epoch}")

    # ----------------------------------------------------------------------------------------------- for one Persistent

    async def allowed(self, name: str) -> None:
        """Wait, no longer than the turn that runs may take, until what is done here may take effect.

        Raises:
            GrainMoved: the activation is no longer its grain's, or is being handed over.
            StorageConflict: memory and storage differ.
            StorageUnavailable: the silo was fenced for too long.
        """
        self._holder.check_alive()
        if self._handed_over:
            raise GrainMoved(f"{self._holder.id} is being moved: what is done to its state {name!r} now would be lost")
        if self.stale:
            raise StorageConflict(f"{self._what(name)} is given up: {self.stale}", name)
        right = self._parts.right
        if right.is_held():
            return
        turn = current_turn.get()
        try:
            async with asyncio.timeout_at(turn.deadline if turn is not None else None):
                await right.held()
        except TimeoutError:
            raise StorageUnavailable(f"{self._what(name)}: this silo's lease has not been renewed in time") from None

    def spawn(self, operation: Coroutine[Any, Any, Exception | None], name: str) -> asyncio.Task[Exception | None]:
        """Run an operation that goes on when whoever waits for it is cancelled."""
        return self._parts.tasks.spawn(operation, f"{name} of {self._holder.id}")

    async def fetch(self, names: Sequence[str]) -> list[StoredState]:
        """What is stored; raises StorageConflict where it has been claimed under a higher epoch."""
        answer = await self._parts.storage.read(self._claim, names)
        if isinstance(answer, Superseded):
            raise self._superseded(names[0])
        return answer

    async def put(self, change: Change) -> None:
        """Carry out a change; raises StorageConflict or StorageOutcomeUnknown, and then it was the last one here."""
        try:
            answer = await self._parts.storage.write(self._claim, change)
        except (StorageUnavailable, StoredStateUnreadable):
            raise  # nothing was changed
        except asyncio.CancelledError:
            self._give_up(f"writing {change.name!r} was cut short, since the silo ends")
            raise
        except Exception as error:  # StorageOutcomeUnknown, or what a storage does not tell from it
            self._give_up(f"whether {change.name!r} was written is not known: {error}")
            raise StorageOutcomeUnknown(
                f"{self._what(change.name)} may have been written: {error}", change.name
            ) from error
        match answer:
            case Written():
                return
            case Superseded():
                raise self._superseded(change.name)
            case Conflicting(etag):
                self._give_up(f"etag {etag or 'none'} is stored, {change.expected or 'none'} was expected")
                raise StorageConflict(f"{self._what(change.name)} was not written: {self.stale}", change.name)

    def encoded(self, name: str, value: object) -> StateBody:
        """The bytes of a value; raises SerializationError or StateTooLarge."""
        body, codec = self._parts.codec.encode(value)
        if len(body) > self._parts.state_bytes_max:
            raise StateTooLarge(
                f"{self._what(name)} has {len(body)} bytes; {self._parts.state_bytes_max} may be stored"
                " (activation.state_bytes_max)",
                len(body),
                self._parts.state_bytes_max,
            )
        return StateBody(STATE_SCHEMA, codec, body)

    def decoded(self, name: str, stored: StateBody) -> object:
        """The value of these bytes; raises StoredStateUnreadable."""
        if stored.schema > STATE_SCHEMA:
            raise StoredStateUnreadable(
                f"{self._what(name)} is stored in schema {stored.schema}; this release reads up to {STATE_SCHEMA}"
            )
        try:
            return self._parts.codec.decode(stored.body, stored.codec)
        except SerializationError as error:
            raise StoredStateUnreadable(f"{self._what(name)} does not decode: {error}") from error

    def new_etag(self) -> str:
        return self._parts.new_etag()

    # -------------------------------------------------------------------------------------------------------- for moves

    def hand_over(self, name: str, *, is_busy: bool) -> None:
        """One state is taken out for a move, from which moment on nothing may be done to any here; see `regain`.

        Raises:
            StorageConflict: memory and storage differ, so that the grain had better be made anew.
            RuntimeError: something is on its way to the storage.
        """
        if self.stale:
            raise StorageConflict(f"{self._what(name)} is given up: {self.stale}", name)
        if is_busy:
            raise RuntimeError(f"{self._what(name)} is being written by what a turn has left running")
        self._handed_over = True

    # --------------------------------------------------------------------------------------------------------- internal

    @property
    def _claim(self) -> Claim:
        return Claim(self._holder.id, self._holder.epoch, self._holder.activation_id)

    def _what(self, name: str) -> str:
        return f"the state {name!r} of {self._holder.id}"

    def _superseded(self, name: str) -> StorageConflict:
        self._give_up("another activation has claimed it")
        return StorageConflict(f"{self._what(name)}: {self.stale}", name)

    def _give_up(self, why: str) -> None:
        """Nothing more is read or written here; the next activation reads what is stored."""
        self.stale = why
        log.warning("storage.activation_given_up", grain=str(self._holder.id), why=why)
        with contextlib.suppress(GrainMoved):  # then it has ended already
            self._holder.request_deactivation()
