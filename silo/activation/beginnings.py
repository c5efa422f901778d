"""Beginnings: how an activation comes to life: a place among those that begin, its entry, its states, its turns."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from silo.activation.activation import Activation, Premises, State, activation_failed
from silo.activation.damping import Damping
from silo.activation.places import Places
from silo.directory.addresses import Entry, GrainId
from silo.directory.cache import DirectoryCache
from silo.directory.contract import Registration
from silo.directory.errors import (
    ActivationDamped,
    DirectoryUnavailable,
    DirectoryUnsettled,
    NotExecuted,
    SiloFenced,
    StorageUnavailable,
    StoredStateUnreadable,
)
from silo.directory.lives import Lives
from silo.eager import EagerTasks
from silo.grain_records import Fate
from silo.instances import build_instance
from silo.logs import get_logger
from silo.migration.lifecycle import ActivationReason
from silo.persistence.grain_states import GrainStates
from silo.tasks import Tasks, is_being_cancelled

if TYPE_CHECKING:
    from silo.activation.catalog import Catalog

log = get_logger(__name__)

REGISTER_TRIES_MAX = 5
"""How often an activation tries for the entry while the row changes under it, before its calls are sent elsewhere."""
REGISTER_PAUSE_S = 0.2
"""How long, about, calls wait before they are placed anew because the directory could not be asked to register."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """What came of a registration."""

    answer: Entry | Exception | None

    def entry(self) -> Entry | None:
        """Whoever holds the row; raises the error that came instead."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Beginnings:
    """Brings the activations of one silo to life, so many at a time, unless they turn out to be served elsewhere.

    Args:
        catalog: which has them, from their beginning on.
        places: which they begin from.
    """

    def __init__(
        self,
        catalog: Catalog,
        places: Places,
        cache: DirectoryCache,
        rng: random.Random,
        lives: Lives,
    ) -> None:
        self._catalog = catalog
        self._places = places
        self._cache = cache
        self._rng = rng
        self._lives = lives
        self._premises: Premises  # given by `open`
        self._starts: EagerTasks  # made by `open`
        self._tasks = Tasks("beginnings")
        self._damping = Damping()
        self._is_closed = False

    def open(self, premises: Premises) -> None:
        self._premises = premises
        self._starts = EagerTasks("beginnings: activate")

    async def close(self) -> None:
        self._is_closed = True
        await self._starts.close()
        await self._tasks.close()

    def forgive(self, grain: GrainId) -> None:
        """Whatever befell it when it last started: the next call may have it tried at once."""
        self._damping.started(grain)

    def begin(self, activation: Activation, expected: Entry | None, trace: str, *, inner: bool) -> None:
        """Bring it to life, as soon as there is a place.

        Args:
            expected: the entry to replace; None where there is none.
            trace: the traceparent of the call that wants it.
            inner: whether that call was made by a grain.
        """
        if self._places.take(activation, inner=inner):
            self._begin(activation, expected, trace)
        else:
            self._places.wait(activation, partial(self._begin, activation, expected, trace))

    def _begin(self, activation: Activation, expected: Entry | None, trace: str) -> None:
        """Ask for its entry at once, where nothing is in the way: what follows most often waits for nothing more, and
        then takes no task."""
        premises = self._premises
        if (
            premises.telemetry is None
            and premises.right.is_held()
            and self._lives.is_settled(activation.id)
            and self._damping.refusal(activation.id, premises.loop.time()) is None
        ):
            mine = self._registration(activation, expected)
            try:
                self._catalog.register_soon(mine, partial(self._on_entry, activation, expected))
            except NotExecuted:
                pass  # it comes up again, where it is seen to
            else:
                return
        self._tasks.spawn(self._start(activation, expected, trace), f"activate {activation.id}")

    def _registration(self, activation: Activation, expected: Entry | None, known_epoch: int = 0) -> Registration:
        floor = max(known_epoch, expected.epoch if expected is not None else 0)
        return Registration(activation.id, self._catalog.me, activation.activation_id, expected, floor)

    def _on_entry(self, activation: Activation, expected: Entry | None, answer: Entry | Exception | None) -> None:
        if not self._is_closed and not self._opens_at_once(activation, answer):
            start = self._start(activation, expected, "", _Answered(answer))
            self._starts.start(start, self._premises.base_context.copy())

    def _opens_at_once(self, activation: Activation, answer: Entry | Exception | None) -> bool:
        """Open it, where nothing is left to wait for, and nothing of the grain's own to be run before its first turn;
        whether that is so."""
        if not (
            activation.kind.starts_bare
            and isinstance(answer, Entry)
            and answer.activation == activation.activation_id
            and self._premises.right.is_held()
            and self._catalog.get(activation.id) is activation
        ):
            return False
        try:
            activation.entry = self._catalog.own_entry(activation, answer)
            activation.instance = build_instance(activation.kind, activation)
            self._damping.started(activation.id)
            activation.open()
        finally:
            self._places.leave(activation)
        return True

    async def _start(
        self, activation: Activation, expected: Entry | None, trace: str, answered: _Answered | None = None
    ) -> None:
        """Activate it.

        Args:
            answered: what came of its registration, where that has been tried once.
        """
        try:
            await self._make(activation, expected, trace, answered)
        finally:
            self._places.leave(activation)

    async def _make(
        self, activation: Activation, expected: Entry | None, trace: str, answered: _Answered | None
    ) -> None:
        telemetry = self._premises.telemetry
        refusal = self._damping.refusal(activation.id, asyncio.get_running_loop().time())
        if refusal is not None:
            self._catalog.drop(activation, ActivationDamped(*refusal))
            return
        try:
            if telemetry is None:
                await self._register_and_open(activation, expected, answered)
            else:
                with telemetry.activation(activation, trace):
                    await self._register_and_open(activation, expected, answered)
        except SiloFenced:
            self._catalog.drop(activation)
        except Exception as error:
            await self._failed(activation, error)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise  # this silo ends
            await self._failed(activation, activation_failed(activation.id, error))  # it came out of a storage, say

    async def _register_and_open(
        self, activation: Activation, expected: Entry | None, answered: _Answered | None
    ) -> None:
        if not self._premises.right.is_held():
            await self._premises.right.held()
        entry = await self._take_settled_entry(activation, expected, answered=answered)
        if entry is None or entry.activation != activation.activation_id:
            if entry is not None:
                self._cache.learn(entry)
            self._catalog.reroute_all(activation)
            return
        activation.entry = self._catalog.own_entry(activation, entry)
        activation.state = State.STARTING
        self.build(activation)
        if activation.states is not None and not await self._read_states(activation, activation.states):
            return
        await self.run_on_activate(activation, ActivationReason.CALL)
        self._damping.started(activation.id)
        activation.open()

    async def _read_states(self, activation: Activation, states: GrainStates) -> bool:
        """Read what is stored for an activation; False where it turned out not to be its grain's, and is gone.

        Raises:
            ActivationFailed: it cannot be read.
        """
        await self._premises.right.held()
        try:
            async with asyncio.timeout(self._premises.limits.activation_timeout_s):
                for _ in range(REGISTER_TRIES_MAX):
                    claimed = await states.read_all()
                    if claimed is None:
                        return True
                    # Either another activation holds the grain by now, or the directory has lost its epochs. It judges.
                    entry = await self._take_settled_entry(activation, activation.entry, claimed.epoch)
                    if entry is None or entry.activation != activation.activation_id:
                        if entry is not None:
                            self._cache.learn(entry)
                        self._catalog.reroute_all(activation)
                        return False
                    activation.entry = self._catalog.own_entry(activation, entry)
        except (StorageUnavailable, StoredStateUnreadable, TimeoutError) as error:
            raise activation_failed(activation.id, error) from error
        self._catalog.reroute_all(activation)
        return False

    async def _take_settled_entry(
        self,
        activation: Activation,
        expected: Entry | None,
        known_epoch: int = 0,
        *,
        answered: _Answered | None = None,
    ) -> Entry | None:
        """As `_take_entry`; where the directory has lost rows, once all silos have said again what they serve."""
        while self._catalog.get(activation.id) is activation:
            if answered is None and not self._lives.is_settled(activation.id):
                await self._settled(activation)
                continue
            try:
                return await self._take_entry(activation, expected, known_epoch, answered)
            except DirectoryUnsettled:
                answered = None
        return None

    async def _settled(self, activation: Activation) -> None:
        """Wait until all silos have said again what they serve, and then for a place: others have its own meanwhile."""
        self._places.set_aside(activation)
        await self._lives.settled(activation.id)
        if self._catalog.get(activation.id) is activation:
            await self._places.regained(activation)

    async def _take_entry(
        self, activation: Activation, expected: Entry | None, known_epoch: int, answered: _Answered | None
    ) -> Entry | None:
        """Register the activation; answers with whoever holds the entry, or None if the row would not stand still.

        Args:
            known_epoch: one that the grain has had, wherever that is known from; the new one is above it.
            answered: what came of the first try, where it has been made.
        """
        own_id = activation.activation_id
        entry: Entry | None = None
        for _ in range(REGISTER_TRIES_MAX):
            if answered is not None:
                entry, answered = answered.entry(), None
            else:
                mine = self._registration(activation, expected, known_epoch)
                entry = await self._catalog.register(mine, until_answered=False)
            if self._catalog.get(activation.id) is not activation:
                return entry  # one that was given back has taken its place
            if entry is None:  # the expected row has gone: take the empty place
                expected = None
            elif (
                entry.silo == self._catalog.me and entry.activation != own_id and not self._catalog.is_given_back(entry)
            ):
                expected = entry  # left over by an earlier activation here
            else:
                return entry
        return None

    async def _failed(self, activation: Activation, error: Exception) -> None:
        """Its calls are told why it could not be activated; the entry goes, so that the next call may try again."""
        if isinstance(
            error, DirectoryUnavailable
        ):  # a row that was written all the same is found, and replaced, as left over
            for call in activation.turns.waiting:
                call.obstacle = error
            self._places.leave(activation)  # it only waits
            await asyncio.sleep(REGISTER_PAUSE_S * (0.5 + self._rng.random()))
            self._catalog.reroute_all(activation)
            return
        log.warning("activation.failed", grain=str(activation.id), exc_info=error)
        now = asyncio.get_running_loop().time()
        self._premises.chronicle.note(activation.id, Fate.NOT_ACTIVATED, f"{type(error).__name__}: {error}", now)
        if not isinstance(error.__cause__, StorageUnavailable):  # no fault of the grain, and over as soon as it is back
            why = f"{type(error).__name__}: {error}"
            self._damping.failed(activation.id, why, asyncio.get_running_loop().time())
        failure = error if isinstance(error, NotExecuted) else activation_failed(activation.id, error)
        if activation.entry is not None:
            await self._catalog.unregister(activation.entry)
        self._catalog.drop(activation, failure)

    async def run_on_activate(self, activation: Activation, reason: ActivationReason) -> None:
        if activation.states is not None:
            await activation.states.settle()
        hook = activation.kind.hooks.on_activate
        if hook is not None:
            instance = activation.instance
            first = next(iter(activation.turns.waiting), None)
            await activation.in_hook(lambda: hook(instance, reason), self._premises.limits.activation_timeout_s, first)

    def build(self, activation: Activation) -> None:
        """Construct the grain's instance; raises what its constructor raises."""
        kind, storage = activation.kind, self._premises.storage
        activation.instance = activation.run_sync(lambda: build_instance(kind, activation))
        if kind.persistent:
            assert storage is not None  # the host has made one for such kinds
            activation.states = GrainStates(activation, activation.instance, kind.persistent, storage)
