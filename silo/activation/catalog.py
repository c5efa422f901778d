"""The catalog: every activation of this silo, from its making to its end. How one begins is in `beginnings`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from silo.activation.activation import Activation, Premises, State
from silo.activation.beginnings import Beginnings
from silo.activation.intake import IntakeLimits
from silo.activation.places import Places
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.contract import Registration
from silo.directory.errors import (
    Closed,
    DirectoryUnavailable,
    GrainMoved,
    NotExecuted,
    SiloFenced,
)
from silo.directory.lives import Lives
from silo.directory.registrar import Registrar
from silo.grain_records import Fate
from silo.kinds import GrainKind, KindRegistry
from silo.logs import get_logger
from silo.migration.lifecycle import DeactivationReason
from silo.routing.call import Answer, Call
from silo.tasks import Tasks

log = get_logger(__name__)

ACTIVATION_ID_BITS = 128
"""As many as a UUID has: no two are alike, whoever draws them."""
TURN_END_S = 1.0
"""How long turns that were cancelled may take to end when their silo does."""
UNFORESEEN_TRIES_MAX = 5
"""How often a compare-and-set that must be answered is tried though it fails in a way that nobody foresaw."""
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 1.0
"""The pause between two attempts to reach the directory: the first, and the longest."""


@dataclass(frozen=True, slots=True)
class CollectionLimits:
    """When idle activations go."""

    collect_after_s: float = 900.0
    collect_every_s: float = 30.0
    collect_in_flight_max: int = 500


class Catalog:
    """Makes, finds, deactivates and drops the activations of one silo.

    The catalog alone says which activations are here; the directory alone says whether they are their grains'.

    Args:
        on_capacity: told when the silo has become full, and when it has room again.
    """

    def __init__(
        self,
        me: SiloAddress,
        kinds: KindRegistry,
        registrar: Registrar,
        cache: DirectoryCache,
        rng: random.Random,
        limits: CollectionLimits,
        intake_limits: IntakeLimits,
        on_capacity: Callable[[], None],
        lives: Lives,
    ) -> None:
        self.me = me
        self.kinds = kinds
        self.premises: Premises  # given by `open`
        self._registrar = registrar
        self._cache = cache
        self._rng = rng
        self._limits = limits
        self._activations: dict[GrainId, Activation] = {}
        self.get = self._activations.get
        """The activation of a grain, or None: the look-up itself, since each call asks several times."""
        self._frozen: dict[str, tuple[Entry, Callable[[Entry], None]]] = {}
        """Those that moved on and may yet be given back, by activation id: the new entry, and who is told of that."""
        self._taking_back: dict[GrainId, Activation] = {}
        """Those that a compare-and-set is out for, after the silos died that they had moved to."""
        self._intake_limits = intake_limits
        self._on_capacity = on_capacity
        self.places = Places(intake_limits, self.drop)
        self.beginnings = Beginnings(self, self.places, cache, rng, lives)
        self._removal: asyncio.Future[None] | None = None
        self._tasks = Tasks("catalog")

    def open(self, premises: Premises) -> None:
        """Begin: from now on activations can be made, and idle ones are collected."""
        self.premises = premises
        self.places.open(premises.loop)
        self.beginnings.open(premises)
        self._tasks.spawn(self._collect_idle(), "collect idle activations")

    async def close(self) -> None:
        """End what runs. A turn that will not be cancelled is left behind; it may use the runtime no more."""
        self.places.close()
        await self.beginnings.close()
        await self._tasks.close()
        left = await self.premises.running.close(TURN_END_S)
        if left:
            log.warning("catalog.turns_left_behind", turns=left)

    def __len__(self) -> int:
        return len(self._activations)

    def __iter__(self) -> Iterator[Activation]:
        return iter(tuple(self._activations.values()))

    @property
    def activations_max(self) -> int | None:
        return self._intake_limits.activations_max

    def why_full(self) -> str:
        """Why this silo takes no more activations; empty where it does."""
        return self._intake_limits.why_full(len(self._activations))

    def new_activation_id(self) -> str:
        return f"{self._rng.getrandbits(ACTIVATION_ID_BITS):032x}"

    # ------------------------------------------------------------------------------------------------------- beginnings

    def activate(
        self, grain: GrainId, kind: GrainKind, expected: Entry | None, trace: str = "", *, inner: bool = False
    ) -> Activation:
        """Begin to activate a grain that is not here, as soon as there is a place. Calls may be admitted at once.

        Args:
            expected: the entry to replace: of a dead silo, or left over here; None where there is none.
            trace: the traceparent of the call that wants it.
            inner: whether that call was made by a grain.
        """
        activation = self.adopt(grain, kind, self.new_activation_id())
        self.beginnings.begin(activation, expected, trace, inner=inner)
        return activation

    def adopt(self, grain: GrainId, kind: GrainKind, activation_id: str) -> Activation:
        """A closed activation under a given id; whoever adopts it brings it to life or drops it."""
        assert grain not in self._activations
        activation = self._activations[grain] = Activation(grain, kind, activation_id, self.premises)
        self._counted(grain, 1)
        self._tell_if_at_bound()
        return activation

    def _tell_if_at_bound(self) -> None:
        """At the bound it has just become full, or is about to have room again."""
        if len(self._activations) == self._intake_limits.activations_max:
            self._on_capacity()

    def _counted(self, grain: GrainId, change: int) -> None:
        if self.premises.telemetry is not None:
            self.premises.telemetry.counted(grain, change)

    def freeze(self, activation: Activation, entry: Entry, on_given_back: Callable[[Entry], None]) -> int:
        """The grain serves elsewhere now, but may be given back: keep the instance, and send on what waits for it.

        Args:
            on_given_back: told of an entry that names this activation again, should one be found.
        """
        self._frozen[activation.activation_id] = (entry, on_given_back)
        _give_hops_back(activation)
        return self.reroute_all(activation, entry)

    def is_given_back(self, entry: Entry) -> bool:
        """Whether the entry names an activation that is frozen here. If so, it is on its way back to life."""
        moved_on = self._frozen.get(entry.activation)
        if moved_on is None or entry.epoch <= moved_on[0].epoch:  # a row that was read before the move names it, too
            return False
        moved_on[1](entry)
        return True

    def entries(self) -> Iterator[Entry]:
        """The entries of all that is served from here, and of what has moved on and may yet be given back."""
        for activation in self:
            if activation.entry is not None:
                yield activation.entry
        for entry, _ in tuple(self._frozen.values()):
            yield entry

    def entry_of(self, grain: GrainId) -> Entry | None:
        """The entry by which the grain is served here, or by which it has moved on; None if neither is known."""
        activation = self._activations.get(grain)
        if activation is not None:
            return activation.entry
        return next((entry for entry, _ in self._frozen.values() if entry.grain == grain), None)

    def is_served(self, entry: Entry) -> bool:
        """Whether this entry may be true, as far as is known here.

        It may where it names an activation that lives here: the answer that brings its epoch may still be on its way,
        as to a grain that arrives, and without its row nobody would have the grain's state.
        """
        activation = self._activations.get(entry.grain)
        return (activation is not None and activation.activation_id == entry.activation) or entry.silo != self.me

    def outdone(self, entry: Entry, by: Entry) -> None:
        """Another row stands, and keeps standing: whoever went by this one yields.

        Not to a row of its own, written by a registration whose answer is still on its way.
        """
        if self.is_given_back(by):
            return
        activation = self._activations.get(entry.grain)
        if activation is not None and activation.activation_id == by.activation:
            return
        if activation is not None and activation.move is not None and activation.move.successor == by.activation:
            return  # it is on its way there: whether it has arrived, the two sides of the move find out
        if activation is not None and activation.entry == entry:
            log.warning("activation.outdone", grain=str(entry.grain), entry=str(entry), by=str(by))
            self.reroute_all(activation, by)

    def take_back(self, activation: Activation) -> None:
        """Its move is being taken back by compare-and-set: until it is decided, the grain does not begin anew here."""
        self._taking_back[activation.id] = activation

    def is_taking_back(self, grain: GrainId) -> bool:
        return grain in self._taking_back

    def let_go(self, activation: Activation) -> None:
        """The grain will not be given back."""
        self._no_longer_frozen(activation)
        activation.instance = None

    def readopt(self, activation: Activation) -> bool:
        """Take back an activation whose move was given back; False where the grain has another one here by now.

        One that only tries to register steps aside: it has lost, since the entry is this one's.
        """
        self._no_longer_frozen(activation)
        waiting: list[Call] = []
        other = self._activations.get(activation.id)
        if other is not None:
            if other.state is not State.REGISTERING:
                return False
            waiting = self._remove(other)
        self._activations[activation.id] = activation
        self._counted(activation.id, 1)
        self._tell_if_at_bound()
        activation.revive()
        self.premises.reroute(waiting)
        return True

    def _no_longer_frozen(self, activation: Activation) -> None:
        self._frozen.pop(activation.activation_id, None)
        if self._taking_back.get(activation.id) is activation:
            del self._taking_back[activation.id]

    def own_entry(self, activation: Activation, entry: Entry) -> Entry:
        """Its own entry, made of the names that are here anyway: as it was read, it has each of them to itself, which
        is a fifth of what an idle grain takes."""
        assert entry.activation == activation.activation_id
        if entry.grain is activation.id and entry.silo is self.me and entry.activation is activation.activation_id:
            return entry
        return Entry(activation.id, self.me, activation.activation_id, entry.epoch)

    def register_soon(self, registration: Registration, on_answer: Callable[[Entry | Exception | None], None]) -> None:
        """One compare-and-set, once, without a task; see `Registrar.register_soon`."""
        self._registrar.register_soon(registration, on_answer)

    async def register(self, registration: Registration, *, until_answered: bool) -> Entry | None:
        """One compare-and-set.

        Args:
            until_answered: whether to ask again until there is an answer, since an earlier try may have been carried
                out.
        """
        pause, unforeseen = RETRY_FIRST_S, 0
        while True:
            try:
                return await self._registrar.register(registration)
            except (Closed, SiloFenced):
                raise  # this silo ends
            except (
                NotExecuted
            ) as error:  # the directory is away, or too busy, or has a row that this release cannot read
                if not until_answered:
                    raise
                log.debug("directory.asked_again", why=str(error))
            except Exception:
                unforeseen += 1
                if not until_answered or unforeseen >= UNFORESEEN_TRIES_MAX:
                    raise
                log.exception("directory.failed", grain=str(registration.grain))
            await asyncio.sleep(pause * (0.5 + self._rng.random()))
            pause = min(pause * 2, RETRY_LAST_S)

    # ------------------------------------------------------------------------------------------------------------- ends

    def drop(self, activation: Activation, failure: NotExecuted | None = None) -> None:
        """Take an activation out at once. What waits fails with this, or is left to the callers' silos to judge."""
        waiting = self._remove(activation)
        if failure is not None:
            for call in waiting:
                call.on_answer(call, Answer.failed(failure))

    def reroute_all(self, activation: Activation, entry: Entry | None = None) -> int:
        """Take an activation out and send its waiting calls on, in order. Returns how many there were.

        Args:
            entry: who serves the grain now, where that is known.
        """
        waiting = self._remove(activation)
        if entry is not None:
            self._cache.learn(entry)
        self.premises.reroute(waiting)
        return len(waiting)

    def _remove(self, activation: Activation) -> list[Call]:
        if self._activations.get(activation.id) is activation:
            self._tell_if_at_bound()
            del self._activations[activation.id]
            self._counted(activation.id, -1)
            self.places.gone(activation)
            if self._removal is not None and not self._removal.done():
                self._removal.set_result(None)
        return activation.abandon()

    async def next_removal(self) -> None:
        """Wait until an activation has gone."""
        if self._removal is None or self._removal.done():
            self._removal = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._removal)

    async def unregister(self, entry: Entry) -> None:
        """Remove an entry of one's own. A row that stays is found and replaced by the next call for its grain."""
        try:
            await self._registrar.unregister(entry)
        except DirectoryUnavailable as error:
            log.warning("directory.row_left", entry=str(entry), why=str(error))

    def begin_deactivation(self, activation: Activation, reason: DeactivationReason) -> asyncio.Task[None] | None:
        """Deactivate in the background, where it is open and not moving; a stale state ends its move first.

        Returns: the task that does it, where one was begun.
        """
        if reason is DeactivationReason.STALE_STATE and activation.state is State.OPEN and activation.move is not None:
            activation.move.give_up("its persistent state is given up")  # after which this is asked for again
        elif activation.state is State.OPEN and activation.move is None:
            activation.hold()
            return self._tasks.spawn(self._deactivate(activation, reason), f"deactivate {activation.id}")
        return None

    async def deactivate(self, activation: Activation, reason: DeactivationReason) -> None:
        """Let the running turns finish, run `on_deactivate`, give the entry up, and send on what waits.

        One that is still starting, or coming back from a move, is let come to itself first.
        """
        try:
            await activation.opened()
        except GrainMoved:
            return
        if activation.state is State.OPEN and activation.move is None:
            activation.hold()
            await self._deactivate(activation, reason)

    async def _deactivate(self, activation: Activation, reason: DeactivationReason) -> None:
        began = asyncio.get_running_loop().time()
        if not await activation.drained():
            return  # it has been given up already
        error = await self.run_on_deactivate(activation, reason)
        if error is not None:
            log.warning("deactivation.hook_failed", grain=str(activation.id), reason=reason, exc_info=error)
        if activation.entry is not None:
            await self.unregister(activation.entry)
            self._cache.forget(activation.entry)
        _give_hops_back(activation)
        self.premises.chronicle.go_on(activation.id, Fate.DEACTIVATED, reason, asyncio.get_running_loop().time())
        self.reroute_all(activation)
        if self.premises.telemetry is not None:
            took_s = asyncio.get_running_loop().time() - began
            self.premises.telemetry.deactivated(activation.id, reason, took_s, error is not None)

    async def run_on_deactivate(self, activation: Activation, reason: DeactivationReason) -> Exception | None:
        """Run the hook; answers with what it raised, since nothing is undone for that."""
        hook = activation.kind.hooks.on_deactivate
        if hook is None:
            return None
        instance = activation.instance
        try:
            await activation.in_hook(lambda: hook(instance, reason), self.premises.limits.deactivation_timeout_s)
        except Exception as error:
            return error
        return None

    def abandon_all(self) -> list[Activation]:
        """Declared dead: give up every activation at once, without hooks and without writing anything."""
        everything = list(self._activations.values())
        self.places.abandon()
        self._frozen.clear()
        self._taking_back.clear()
        for activation in everything:
            self._remove(activation)
        return everything

    # ------------------------------------------------------------------------------------------------------ idle grains

    async def _collect_idle(self) -> None:
        while True:
            await asyncio.sleep(self._limits.collect_every_s)
            await self._end_idle()

    async def _end_idle(self) -> None:
        """End those that are idle now, so many at a time. What takes longer than the next look would, as a task that a
        grain wants waited for may, is counted no more: others end all the same."""
        ending = set[asyncio.Task[None]]()
        for activation in self.idle_since(asyncio.get_running_loop().time()):
            task = self.begin_deactivation(activation, DeactivationReason.IDLE)
            if task is not None:
                ending.add(task)
            if len(ending) >= self._limits.collect_in_flight_max:
                ended, ending = await asyncio.wait(
                    ending, timeout=self._limits.collect_every_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not ended:
                    ending.clear()

    def idle_since(self, now: float) -> Iterable[Activation]:
        """Those that nobody has used for as long as their kind allows, each looked at when its turn comes."""
        for activation in tuple(self._activations.values()):
            after = activation.kind.collect_after_s
            limit = self._limits.collect_after_s if after is None else after
            if activation.state is State.OPEN and activation.turns.is_idle and now - activation.last_used >= limit:
                yield activation


def _give_hops_back(activation: Activation) -> None:
    """What waits had come to its grain: however often that moves or ends after it was open, no hop is used up."""
    for call in activation.turns.waiting:
        call.hops = min(call.hops, 1)
