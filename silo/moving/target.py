"""One move to here: the shell of the handover at its target."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from silo.activation.activation import State
from silo.directory.addresses import Entry, SiloAddress
from silo.directory.contract import Registration
from silo.directory.errors import NotExecuted, SiloFenced
from silo.logs import get_logger
from silo.migration import handover
from silo.migration.handover import Target
from silo.migration.lifecycle import ActivationReason
from silo.moving.parts import MoveParts
from silo.moving.restored import restore
from silo.wire.frames import Frame, Offer, OfferAnswer, Opened

if TYPE_CHECKING:
    from silo.moving.moves import Moves
    from silo.telemetry.moves import MoveRecord

log = get_logger(__name__)


class TargetMove:
    """One move to here: carries out what the core orders, and tells it what came of it."""

    def __init__(self, moves: Moves, parts: MoveParts, peer: SiloAddress, offer: Offer) -> None:
        kind = parts.catalog.kinds[offer.entry.grain.kind]
        self._moves = moves
        self._parts = parts
        self._peer = peer
        self._offer = offer
        self._idle_s = 0.0
        self._activation = parts.catalog.adopt(offer.entry.grain, kind, offer.activation)
        self._activation.state = State.STARTING  # who would move or deactivate it waits until it is open
        self._core = Target(parts.me, offer.activation, offer.entry)
        self._record: MoveRecord | None = None
        if parts.telemetry is not None:
            row = parts.membership.view.row(peer)
            source = row.info.name if row is not None else str(peer)
            self._record = parts.telemetry.arriving(self._activation, offer.reason, source, offer.trace)

    def start(self) -> None:
        self._carry_out(self._core.start())

    def post(self, event: handover.Event) -> None:
        self._carry_out(self._core.on(event))

    def _carry_out(self, orders: Iterable[handover.Order]) -> None:
        for order in orders:
            if self._record is not None:
                self._record.on(order)
            match order:
                case handover.Rehydrate():
                    self._rehydrate()
                case handover.Register():
                    self._register_soon()
                case handover.SendOfferAnswer(entry, why, lost):
                    self._send(OfferAnswer(self._offer.move, entry, why, lost))
                case handover.Activate():
                    self._activate()
                case handover.Open():
                    self._open()
                case handover.SendOpened(why, entry):
                    self._send(Opened(self._offer.move, why, entry))
                case handover.GiveBack():
                    self._spawn(self._give_back, "give back")
                case handover.Discard(entry, why):
                    self._discard(entry, why)
                case _:
                    raise AssertionError(f"an order for the source: {order}")

    def _spawn(self, step: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._moves.tasks.spawn(self._step(step), f"{name} {self._activation.id}")

    async def _step(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await step()
        except SiloFenced as error:
            self._discard(None, str(error))
        except Exception as error:
            log.exception("migration.arrival_failed", grain=str(self._activation.id))
            self.post(handover.Failed(f"{type(error).__name__}: {error}"))

    def _send(self, frame: Frame) -> None:
        if not self._parts.membership.view.is_dead(self._peer):
            self._parts.links.to(self._peer).send(frame)

    def _rehydrate(self) -> None:
        try:
            payload = restore(self._parts, self._activation, self._offer.payload)
        except Exception as error:
            self.post(handover.Failed(f"{type(error).__name__}: {error}"))
            return
        self._idle_s = payload.idle_s
        self._activation.started_at -= payload.age_s
        self.post(handover.Rehydrated())

    def _register_soon(self) -> None:
        """Ask for the entry at once, where nothing is in the way: most often that takes no task."""
        if self._activation.right.is_held():
            try:
                self._parts.catalog.register_soon(self._registration(), self._on_registered)
            except NotExecuted:
                pass  # it comes up again, where it is seen to
            else:
                return
        self._spawn(self._register, "register")

    def _on_registered(self, answer: Entry | Exception | None) -> None:
        if self._moves.is_closed:
            return
        if isinstance(answer, Exception):
            self._spawn(self._register, "register")  # it may have been carried out: it is asked for until that is known
        else:
            self.post(handover.Registered(answer))

    async def _register(self) -> None:
        await self._activation.right.held()
        self.post(handover.Registered(await self._parts.catalog.register(self._registration(), until_answered=True)))

    def _registration(self) -> Registration:
        offered = self._offer.entry
        return Registration(offered.grain, self._parts.me, self._offer.activation, offered, offered.epoch)

    def _activate(self) -> None:
        assert self._core.entry is not None
        self._activation.entry = self._parts.catalog.own_entry(self._activation, self._core.entry)
        self._parts.cache.forget_grain(self._activation.id)
        kind, right = self._activation.kind, self._activation.right
        if kind.hooks.on_activate is None and not kind.persistent and right.is_held():
            self.post(handover.Activated())
        else:
            self._spawn(self._run_on_activate, "activate")

    async def _run_on_activate(self) -> None:
        catalog = self._parts.catalog
        tries = catalog.premises.limits.activate_tries_max
        failure: Exception | None = None
        for _ in range(tries):
            try:
                await catalog.beginnings.run_on_activate(self._activation, ActivationReason.MIGRATION)
            except SiloFenced:
                raise
            except Exception as error:
                failure = error
                log.warning("migration.on_activate_failed", grain=str(self._activation.id), exc_info=error)
            else:
                # For this word the source lets its instance go: nobody says it whom another may have replaced.
                await self._activation.right.held()
                self.post(handover.Activated())
                return
        self.post(handover.Failed(f"on_activate failed {tries} times: {type(failure).__name__}: {failure}"))

    def _open(self) -> None:
        now = self._activation.loop.time()
        self._activation.open()
        self._activation.last_used = now - self._idle_s
        if self._record is not None:
            self._record.opened(self._activation.epoch)
        self._moves.arrived(self._peer, self._offer.move)

    async def _give_back(self) -> None:
        await self._activation.right.held()
        offered = self._offer.entry
        # To a source that has died, too: the next call takes over what a dead silo has, and no move deletes a row.
        back = Registration(offered.grain, self._peer, offered.activation, self._core.entry, offered.epoch)
        self.post(handover.Registered(await self._parts.catalog.register(back, until_answered=True)))

    def _discard(self, entry: Entry | None, why: str) -> None:
        log.info("migration.not_taken", grain=str(self._activation.id), source=str(self._peer), why=why)
        if self._record is not None:
            self._record.discarded(why)
        self._moves.arrived(self._peer, self._offer.move)
        self._parts.catalog.reroute_all(self._activation, entry)

    def end_record(self) -> None:
        """The silo ends in the middle of it."""
        if self._record is not None:
            self._record.failed("the silo ended")
