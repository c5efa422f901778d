"""Moves: the shells around the handover protocol, at the source and at the target."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import platform
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from silo.activation.activation import Activation, State, activation_failed
from silo.activation.catalog import Catalog
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.contract import Registration
from silo.directory.errors import GrainMoved, GrainUnplaceable, MembershipUnavailable, SiloError, SiloFenced
from silo.directory.membership import Membership, SiloStatus, Table, View
from silo.instances import parts_of, refusal_to_migrate
from silo.migration import handover
from silo.migration.handover import Source, SourcePhase, Target
from silo.migration.lifecycle import ActivationReason, DeactivationReason, Departure, MigrationNotice
from silo.migration.outcome import MigrationOutcome, MoveReason, MoveStatus
from silo.migration.participants import PARTICIPANT_PREFIX, Part
from silo.migration.payload import PAYLOAD_FORMAT, Payload, dehydrate, pack, refusals, rehydrate, schemas, unpack
from silo.placement.decision import Placement
from silo.routing.call import Answer, Call, ValueCodec
from silo.soft_state import SoftStatePart
from silo.tasks import Tasks
from silo.wire.frames import Ask, AskAnswer, Frame, Offer, OfferAnswer, Opened, Outcome, Withdraw

if TYPE_CHECKING:
    from silo.messaging.links import Links
    from silo.telemetry import Telemetry
    from silo.telemetry.moves import MoveRecord

from silo.logs import get_logger

log = get_logger(__name__)

MIGRATE = "migrate"
"""The control verb that moves a grain."""
MOVE_ANSWER_S = 30.0
"""What a control call allows beyond the move's own timeouts."""


class MoveOrder(msgspec.Struct, array_like=True, frozen=True):
    """The payload of the control verb `migrate`."""

    to: str = ""
    """The name or address of a silo; empty to let placement choose."""
    reason: str = MoveReason.ADMIN
    force: bool = False


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """The bounds of moves; see the settings of the same names."""

    drain_timeout_s: float = 60.0
    ask_timeout_s: float = 2.0
    offer_timeout_s: float = 10.0
    payload_bytes_max: int = 16 * 1024 * 1024
    moves_in_flight_max: int = 100
    arrivals_in_flight_max: int = 1000
    notice_timeout_s: float = 10.0
    """How long `on_migrating` may take before the move goes on without it."""


@dataclass(frozen=True, slots=True)
class MoveParts:
    """What moves use of their silo."""

    me: SiloAddress
    name: str
    app_version: str
    catalog: Catalog
    cache: DirectoryCache
    links: Links
    membership: Membership
    placement: Placement
    codec: ValueCodec
    limits: MoveLimits
    telemetry: Telemetry | None = None


class Moves:
    """All moves from and to one silo."""

    def __init__(self, parts: MoveParts) -> None:
        self._parts = parts
        self._ids = itertools.count(1)
        self._leaving: dict[int, SourceMove] = {}
        self._arriving: dict[tuple[SiloAddress, int], TargetMove] = {}
        self._slots = asyncio.Semaphore(parts.limits.moves_in_flight_max)
        self.tasks = Tasks("moves")

    async def close(self) -> None:
        await self.tasks.close()
        for leaving in self._leaving.values():
            leaving.end_record()
        for arriving in self._arriving.values():
            arriving.end_record()

    @property
    def leaving_count(self) -> int:
        return len(self._leaving)

    @property
    def arriving_count(self) -> int:
        return len(self._arriving)

    # ------------------------------------------------------------------------------------------------------- beginnings

    def begin(
        self,
        activation: Activation,
        to: str | SiloAddress | None,
        reason: str,
        force: bool = False,
        trace: str | None = None,
    ) -> asyncio.Future[MigrationOutcome]:
        """Begin to move an activation. A second move of it joins the first, whose target it may still change.

        Args:
            trace: the traceparent of what asked for it; None for whatever runs now.
        """
        row = self._parts.membership.view.named(str(to)) if to else None
        if to and (row is None or row.status is SiloStatus.JOINING):  # it may have joined a moment ago
            return self.tasks.spawn(self._begin_after_refresh(activation, to, reason, force, trace), f"look for {to}")
        return self._begin(activation, to, reason, force, trace)

    async def _begin_after_refresh(
        self, activation: Activation, to: str | SiloAddress, reason: str, force: bool, trace: str | None
    ) -> MigrationOutcome:
        with contextlib.suppress(MembershipUnavailable):  # then the view that there is must do
            await self._parts.membership.refresh()
        return await self._begin(activation, to, reason, force, trace)

    def _begin(
        self, activation: Activation, to: str | SiloAddress | None, reason: str, force: bool, trace: str | None
    ) -> asyncio.Future[MigrationOutcome]:
        target = self._target_of(activation, to)
        if isinstance(target, str):
            return self._refused(activation, reason, target)
        why = self._why_not(activation, target, force)
        if why:
            return self._refused(activation, reason, why, target)
        move: SourceMove | None = activation.move
        if move is None:
            move = SourceMove(self, self._parts, activation, target, reason, trace)
            self.tasks.spawn(self._when_free(move), f"move {activation.id}")
        else:
            move.retarget(target)
        return move.outcome

    async def _when_free(self, move: SourceMove) -> None:
        async with self._slots:
            move.start()
            await asyncio.wait([move.outcome])

    def _target_of(self, activation: Activation, to: str | SiloAddress | None) -> SiloAddress | str:
        """Where to, or why nowhere."""
        view = self._parts.membership.view
        if to:
            row = view.named(str(to))
            if row is None:
                known = ", ".join(sorted(each.info.name for each in view.living()))
                return f"no living silo is called {to} (known: {known})"
            return row.silo
        rows = tuple(row for row in view.table.rows if row.silo != self._parts.me)
        elsewhere = View(Table(view.table.run, view.version, rows))
        try:
            return self._parts.placement.choose(activation.id, elsewhere).silo
        except GrainUnplaceable as error:
            return f"no other silo may host it: {error}"

    def _why_not(self, activation: Activation, target: SiloAddress, force: bool) -> str:
        """Why this move is refused at once; empty where it is not. Nothing has been stopped, so it costs nothing."""
        if target == self._parts.me:
            return "it is already there"
        row = self._parts.membership.view.row(target)
        if row is None or row.status is not SiloStatus.ACTIVE:
            status = row.status.name.lower() if row else "not in the cluster"
            return f"{target} is {status}; only an active silo takes grains"
        if row.info.kinds and activation.id.kind not in row.info.kinds:
            return f"{row.info.name} does not host grains of kind {activation.id.kind!r}"
        if not activation.kind.migratable and not force:
            return f"kind {activation.id.kind!r} is declared migratable=False; an explicit move needs force"
        if activation.move is not None:
            return ""
        if activation.state not in (State.OPEN, State.REGISTERING, State.STARTING):
            return f"it is {activation.state.value}"
        if activation.instance is not None:
            return refusal_to_migrate(activation.kind, activation.instance)
        return ""

    def _refused(
        self, activation: Activation, reason: str, why: str, target: SiloAddress | None = None
    ) -> asyncio.Future[MigrationOutcome]:
        if self._parts.telemetry is not None:
            self._parts.telemetry.move_refused(activation.id, reason)
        future: asyncio.Future[MigrationOutcome] = asyncio.get_running_loop().create_future()
        future.set_result(
            MigrationOutcome(
                activation.id, MoveStatus.REFUSED, self._parts.me, target, reason, why, source_name=self._parts.name
            )
        )
        return future

    # ---------------------------------------------------------------------------------------------------------- control

    def on_control(self, call: Call, activation: Activation | None) -> None:
        """Answer a control call."""
        if call.method != MIGRATE:
            error = SiloError(f"no control verb is called {call.method!r}")
            call.on_answer(call, Answer(Outcome.NOT_EXECUTED, error=error))
            return
        try:
            order = msgspec.msgpack.decode(call.payload(self._parts.codec), type=MoveOrder)
        except msgspec.MsgspecError as error:
            call.on_answer(call, Answer(Outcome.NOT_EXECUTED, error=SiloError(f"not a move order: {error}")))
            return
        if activation is None:
            answer_outcome(
                call,
                MigrationOutcome(call.grain, MoveStatus.NOT_ACTIVE, reason=order.reason, why="it has no activation"),
            )
            return
        turns = {grain for grain, _ in call.path}
        if str(call.grain) in turns:
            why = "a turn of the grain waits for this move, which waits for that turn to end"
            answer_outcome(
                call, MigrationOutcome(call.grain, MoveStatus.REFUSED, self._parts.me, None, order.reason, why)
            )
            return
        outcome = self.begin(activation, order.to or None, order.reason, order.force, call.trace)
        outcome.add_done_callback(lambda done: answer_outcome(call, done.result()) if not done.cancelled() else None)

    # ----------------------------------------------------------------------------------------------------------- frames

    def on_frame(self, peer: SiloAddress, frame: Frame) -> bool:
        """Take a frame of the handover protocol; False for any other."""
        match frame:
            case Ask():
                self._parts.links.to(peer).send(
                    AskAnswer(frame.move, self._why_refuse(frame.grain, frame.payload_bytes, frame.schemas))
                )
            case Offer():
                self._on_offer(peer, frame)
            case AskAnswer(move=number, refused=why):
                self._to_source(peer, number, handover.AskAnswered(why))
            case OfferAnswer(move=number, entry=entry, refused=why, lost=lost):
                self._to_source(peer, number, handover.OfferAnswered(entry, why, lost))
            case Opened(move=number, failed=why, entry=entry):
                self._to_source(peer, number, handover.TargetOpened(why, entry))
            case Withdraw(move=number):
                arriving = self._arriving.get((peer, number))
                if arriving is not None:
                    arriving.post(handover.Withdrawn())
            case _:
                return False
        return True

    def _to_source(self, peer: SiloAddress, number: int, event: handover.Event) -> None:
        move = self._leaving.get(number)
        if move is not None and move.target == peer:
            move.post(event)

    def _why_refuse(self, grain: GrainId, payload_bytes: int, offered: dict[str, int]) -> str:
        """Why this silo would not take the grain; empty where it would."""
        parts = self._parts
        row = parts.membership.view.row(parts.me)
        if row is None or row.status is not SiloStatus.ACTIVE:
            return f"{parts.name} is leaving"
        kind = parts.catalog.kinds.get(grain.kind)
        if kind is None:
            return f"{parts.name} does not host grains of kind {grain.kind!r}"
        if parts.catalog.get(grain) is not None:
            return f"{parts.name} has an activation of {grain} already"
        if payload_bytes > parts.limits.payload_bytes_max:
            most = parts.limits.payload_bytes_max
            return f"{payload_bytes} bytes of state are more than the {most} that {parts.name} takes"
        if len(self._arriving) >= parts.limits.arrivals_in_flight_max:
            return f"{parts.name} has {len(self._arriving)} grains arriving, as many as it takes at a time"
        fields = {name: schema for name, schema in offered.items() if not name.startswith(PARTICIPANT_PREFIX)}
        failures = refusals(parts_of(kind, object()), fields)
        return "; ".join(str(failure.error) for failure in failures)

    def _on_offer(self, peer: SiloAddress, offer: Offer) -> None:
        number = (peer, offer.move)
        if number in self._arriving:
            return
        why = self._why_refuse(offer.entry.grain, len(offer.payload), {})
        if why:
            self._parts.links.to(peer).send(OfferAnswer(offer.move, None, why))
            return
        move = self._arriving[number] = TargetMove(self, self._parts, peer, offer)
        move.start()

    # ----------------------------------------------------------------------------------------------------------- losses

    def on_lost(self, peer: SiloAddress, frames: Iterable[Frame], because: str) -> None:
        """The link to a silo has ended, and these frames may not have arrived.

        What a target says of its compare-and-set it says again, on the next link: the source waits for it, and heeds it
        once.
        """
        for frame in frames:
            if isinstance(frame, (OfferAnswer, Opened)):
                link = self._parts.links.to(peer)
                if link.ending is None:  # neither is the peer dead nor does this silo end
                    link.send(frame)
        lost = handover.PeerLost(f"the link to {peer} was lost: {because}")
        for move in list(self._leaving.values()):
            if move.target == peer:
                move.post(lost)
        for (source, _), arriving in list(self._arriving.items()):
            if source == peer:
                arriving.post(lost)

    def on_view(self, view: View) -> None:
        """A target may have died. What arrives from a source that has died is taken in all the same."""
        for move in list(self._leaving.values()):
            if not view.is_alive(move.target):
                move.post(handover.PeerDied(f"{move.target} was declared dead"))

    def enter(self, move: SourceMove) -> int:
        number = next(self._ids)
        self._leaving[number] = move
        return number

    def leave(self, number: int) -> None:
        self._leaving.pop(number, None)

    def arrived(self, peer: SiloAddress, number: int) -> None:
        self._arriving.pop((peer, number), None)


class SourceMove:
    """One move away from here: carries out what the core orders, and tells it what came of it."""

    def __init__(
        self,
        moves: Moves,
        parts: MoveParts,
        activation: Activation,
        target: SiloAddress,
        reason: str,
        trace: str | None,
    ) -> None:
        assert activation.entry is not None or activation.state in (State.REGISTERING, State.STARTING)
        self.target = target
        self.outcome: asyncio.Future[MigrationOutcome] = asyncio.get_running_loop().create_future()
        self._moves = moves
        self._parts = parts
        self._activation = activation
        self._reason = reason
        self._number = moves.enter(self)
        self._core: Source | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Of the step under way."""
        self._ask_timer: asyncio.TimerHandle | None = None
        """Of the question that is out, which may be a second one while the grain drains."""
        self._paused_at = 0.0
        self._pause_s = 0.0
        self._payload = b""
        self._held_calls = 0
        self._deactivation_error: Exception | None = None
        self._record: MoveRecord | None = None
        if parts.telemetry is not None:
            self._record = parts.telemetry.leaving(activation, reason, self._target_name, trace)
        activation.move = self

    @property
    def _trace(self) -> str:
        return self._record.trace if self._record is not None else ""

    @property
    def _target_name(self) -> str:
        row = self._parts.membership.view.row(self.target)
        return row.info.name if row is not None else str(self.target)

    def start(self) -> None:
        activation = self._activation
        if activation.state in (State.REGISTERING, State.STARTING):
            self._spawn(self._when_open(), "wait until it is open")
        elif activation.state is State.OPEN and activation.entry is not None:
            self._core = Source(activation.entry, self._parts.catalog.new_activation_id())
            self._carry_out(self._core.start())
        else:
            self._finish(MoveStatus.NOT_ACTIVE, f"it is {activation.state.value}")

    async def _when_open(self) -> None:
        await self._activation.opened()
        why = refusal_to_migrate(self._activation.kind, self._activation.instance)  # nobody could be asked before
        if why:
            self._finish(MoveStatus.REFUSED, why)
        else:
            self.start()

    def retarget(self, target: SiloAddress) -> None:
        """The last target wins, as long as the grain has not been told to deactivate."""
        if self._core is None:
            self.target = target
        elif target != self.target and self._core.is_retargetable:
            self._moves.leave(self._number)
            self._number = self._moves.enter(self)  # an answer of the earlier target counts no more
            self.target = target
            self.post(handover.Retargeted())

    def post(self, event: handover.Event) -> None:
        if isinstance(event, handover.AskAnswered) and self._ask_timer is not None:
            self._ask_timer.cancel()
        if self._core is not None:
            self._carry_out(self._core.on(event))

    def _carry_out(self, orders: Iterable[handover.Order]) -> None:
        for order in orders:
            if self._record is not None:
                self._record.on(order)
            match order:
                case handover.SendAsk():
                    self._ask()
                case handover.Drain():
                    self._spawn(self._drain(), "drain")
                case handover.Deactivate():
                    self._deactivate()
                case handover.Dehydrate():
                    self._dehydrate()
                case handover.SendOffer(payload):
                    self._offer(payload)
                case handover.SendWithdraw():
                    if not self._parts.membership.view.is_dead(self.target):
                        self._parts.links.to(self.target).send(Withdraw(self._number))
                case handover.Fence(expected):
                    self._spawn(self._fence(expected), "fence")
                case handover.Look():
                    self._spawn(self._look(), "look")
                case handover.Resume(reactivate, why):
                    self._spawn(self._resume(reactivate, why), "resume")
                case handover.Forward(entry):
                    self._forward(entry)
                case handover.Discard(entry):
                    self._parts.catalog.reroute_all(self._activation, entry)
                case handover.Release():
                    self._parts.catalog.let_go(self._activation)
                case handover.Finish(status, why):
                    self._finish(status, why)
                case _:
                    raise AssertionError(f"an order for the target: {order}")

    def _spawn(self, step: Coroutine[Any, Any, None], name: str) -> None:
        self._moves.tasks.spawn(self._step(step), f"{name} {self._activation.id}")

    async def _step(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except SiloFenced as error:
            self._finish(MoveStatus.LOST, str(error))
        except GrainMoved as error:
            self._finish(MoveStatus.NOT_ACTIVE, str(error))
        except Exception as error:
            log.exception("migration.step_failed", grain=str(self._activation.id))
            self.post(handover.Failed(f"{type(error).__name__}: {error}"))

    def _set_timer(self, timeout_s: float, why: str) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self.post, handover.TimedOut(why))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------------------------------------------------ steps

    def _ask(self) -> None:
        activation = self._activation
        fields = [SoftStatePart(field, activation.instance) for field in activation.kind.soft_state]
        try:
            measured = dehydrate(fields, self._parts.codec, Departure(), bytes_max=self._parts.limits.payload_bytes_max)
        except SiloError as error:  # better to know before anything stops
            self.post(handover.Failed(str(error)))
            return
        size = sum(entry.size for entry in measured.entries)
        timeout_s = self._parts.limits.ask_timeout_s
        if self._ask_timer is not None:
            self._ask_timer.cancel()
        why = f"{self._target_name} did not say within {timeout_s} s whether it would take it"
        self._ask_timer = asyncio.get_running_loop().call_later(timeout_s, self.post, handover.TimedOut(why))
        self._parts.links.to(self.target).send(Ask(self._number, activation.id, size, schemas(self._all_parts())))

    def _all_parts(self) -> tuple[Part, ...]:
        activation = self._activation
        return parts_of(activation.kind, activation.instance, activation.participants or ())

    async def _drain(self) -> None:
        activation, limits = self._activation, self._parts.limits
        timeout_s = activation.kind.drain_timeout_s or limits.drain_timeout_s
        hook = activation.kind.hooks.on_migrating
        if hook is not None:
            notice = MigrationNotice(self._reason, self._target_name, timeout_s)
            try:
                await activation.in_hook(lambda: hook(activation.instance, notice), limits.notice_timeout_s)
            except SiloFenced:
                raise
            except Exception as error:
                log.warning("migration.notice_failed", grain=str(activation.id), exc_info=error)
        if self._core is None or self._core.phase is not SourcePhase.DRAINING:
            return  # the move was given up meanwhile
        if activation.state is not State.OPEN:
            self.post(handover.Failed(f"it was {activation.state.value} before it could be drained"))
            return
        self._paused_at = asyncio.get_running_loop().time()
        activation.hold()
        match activation.kind.on_busy:
            case "stay" if activation.turns.running_count:
                self.post(
                    handover.Failed(f"it is busy: {activation.turns.running_count} calls run, and its kind says stay")
                )
                return
            case "interrupt":
                activation.interrupt()
            case _:
                pass
        self._set_timer(timeout_s, f"its running calls did not end within {timeout_s} s")
        if await activation.drained():
            self.post(handover.Drained())

    def _deactivate(self) -> None:
        if self._activation.kind.hooks.on_deactivate is None:
            self.post(handover.Deactivated())
            return

        async def run() -> None:
            self._deactivation_error = await self._parts.catalog.run_on_deactivate(
                self._activation, DeactivationReason.MIGRATING
            )
            if self._deactivation_error is not None:
                log.warning(
                    "migration.on_deactivate_failed", grain=str(self._activation.id), exc_info=self._deactivation_error
                )
            self.post(handover.Deactivated())

        self._spawn(run(), "deactivate")

    def _dehydrate(self) -> None:
        activation, parts = self._activation, self._parts
        assert activation.entry is not None
        departure = Departure(self._reason, self._target_name, self._deactivation_error)
        now = asyncio.get_running_loop().time()
        try:
            taken = activation.run_sync(
                lambda: dehydrate(
                    self._all_parts(),
                    parts.codec,
                    departure,
                    skip_failing=activation.kind.on_participant_error == "skip",
                    bytes_max=parts.limits.payload_bytes_max,
                )
            )
            for part, error in taken.skipped:
                log.warning("migration.part_skipped", grain=str(activation.id), part=part, exc_info=error)
            payload = Payload(
                PAYLOAD_FORMAT,
                activation.id,
                activation.entry.epoch,
                self._reason,
                activation.kind.version,
                parts.app_version,
                ".".join(platform.python_version_tuple()[:2]),
                taken.entries,
                idle_s=max(0.0, now - activation.last_used),
                age_s=max(0.0, now - activation.started_at),
                trace=self._trace,
            )
            self._payload = pack(payload, bytes_max=parts.limits.payload_bytes_max)
        except SiloError as error:
            self.post(handover.Failed(str(error)))
            return
        self.post(handover.Dehydrated(self._payload))

    def _offer(self, payload: bytes) -> None:
        activation = self._activation
        assert activation.entry is not None
        assert self._core is not None
        timeout_s = self._parts.limits.offer_timeout_s
        self._set_timer(timeout_s, f"{self._target_name} did not answer the offer within {timeout_s} s")
        offer = Offer(self._number, activation.entry, self._core.successor, payload, self._reason, self._trace)
        self._parts.links.to(self.target).send(offer)

    async def _fence(self, expected: Entry | None) -> None:
        activation = self._activation
        await activation.right.held()
        mine = Registration(activation.id, self._parts.me, activation.activation_id, expected, activation.epoch)
        entry = await self._parts.catalog.register(mine, until_answered=True)
        self.post(handover.Registered(entry))

    async def _look(self) -> None:
        self.post(handover.Found(await self._parts.catalog.look_up(self._activation.id)))

    def _forward(self, entry: Entry) -> None:
        if self._record is not None:
            self._record.held(call.trace for call in self._activation.turns.waiting)
        """The frozen instance stays until the target has opened or died; its calls need not wait for that."""
        self._cancel_timer()  # from here on only the target's last word or its death counts
        self._held_calls = self._parts.catalog.freeze(
            self._activation, entry, lambda back: self.post(handover.Found(back))
        )

    async def _resume(self, reactivate: bool, why: str) -> None:
        """Serve again, here; the same instance where it can be had, else one made from what it had handed over."""
        activation, catalog = self._activation, self._parts.catalog
        assert self._core is not None
        log.info("migration.aborted", grain=str(activation.id), target=self._target_name, why=why)
        if activation.state is State.GONE and not catalog.readopt(activation):
            log.error("migration.given_back_too_late", grain=str(activation.id))
            return  # somebody has activated it here meanwhile
        activation.entry = self._core.entry
        self._parts.cache.forget_grain(activation.id)
        if reactivate:
            activation.state = State.STARTING
            try:
                await catalog.run_on_activate(activation, ActivationReason.MIGRATION_ABORTED)
            except SiloFenced:
                raise
            except Exception as error:
                log.warning("migration.reactivation_failed", grain=str(activation.id), exc_info=error)
                await self._rebuild()
                return
        activation.open()

    async def _rebuild(self) -> None:
        activation, catalog = self._activation, self._parts.catalog
        try:
            restore(self._parts, activation, self._payload or self._packed_again())
            await catalog.run_on_activate(activation, ActivationReason.MIGRATION_ABORTED)
        except SiloFenced:
            raise
        except Exception as error:
            log.exception("migration.grain_lost_its_state", grain=str(activation.id))
            if activation.entry is not None:
                await catalog.unregister(activation.entry)
            catalog.drop(activation, activation_failed(activation.id, error))
            return
        activation.open()

    def _packed_again(self) -> bytes:
        self._dehydrate()
        return self._payload

    def _finish(self, status: MoveStatus, why: str = "") -> None:
        if self.outcome.done():
            return
        now = asyncio.get_running_loop().time()
        self._cancel_timer()
        if self._ask_timer is not None:
            self._ask_timer.cancel()
        self._moves.leave(self._number)
        activation = self._activation
        if activation.move is self:
            activation.move = None
        if self._paused_at:
            self._pause_s = now - self._paused_at
        outcome = MigrationOutcome(
            activation.id,
            status,
            self._parts.me,
            self.target,
            self._reason,
            why,
            self._pause_s,
            len(self._payload),
            self._held_calls,
            self._core.epoch if self._core is not None else 0,
            self._parts.name,
            self._target_name,
        )
        if self._record is not None:
            self._record.ended(outcome)
        log.debug("migration.done" if outcome.moved else "migration.not_done", outcome=str(outcome))
        self.outcome.set_result(outcome)

    def end_record(self) -> None:
        """The silo ends in the middle of it."""
        if self._record is not None:
            self._record.failed("the silo ended")


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
                    self._spawn(self._register, "register")
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

    async def _register(self) -> None:
        await self._activation.right.held()
        offered = self._offer.entry
        mine = Registration(offered.grain, self._parts.me, self._offer.activation, offered, offered.epoch)
        self.post(handover.Registered(await self._parts.catalog.register(mine, until_answered=True)))

    def _activate(self) -> None:
        self._activation.entry = self._core.entry
        self._parts.cache.forget_grain(self._activation.id)
        if self._activation.kind.hooks.on_activate is None:
            self.post(handover.Activated())
        else:
            self._spawn(self._run_on_activate, "activate")

    async def _run_on_activate(self) -> None:
        catalog = self._parts.catalog
        tries = catalog.premises.limits.activate_tries_max
        failure: Exception | None = None
        for _ in range(tries):
            try:
                await catalog.run_on_activate(self._activation, ActivationReason.MIGRATION)
            except SiloFenced:
                raise
            except Exception as error:
                failure = error
                log.warning("migration.on_activate_failed", grain=str(self._activation.id), exc_info=error)
            else:
                self.post(handover.Activated())
                return
        self.post(handover.Failed(f"on_activate failed {tries} times: {type(failure).__name__}: {failure}"))

    def _open(self) -> None:
        now = asyncio.get_running_loop().time()
        self._activation.open()
        self._activation.last_used = now - self._idle_s
        if self._record is not None:
            self._record.opened(self._activation.epoch)
        self._moves.arrived(self._peer, self._offer.move)

    async def _give_back(self) -> None:
        await self._activation.right.held()
        offered = self._offer.entry
        back = Registration(offered.grain, self._peer, offered.activation, self._core.entry, offered.epoch)
        if self._parts.membership.view.is_dead(self._peer):
            if self._core.entry is not None:
                await self._parts.catalog.unregister(self._core.entry)
            self.post(handover.Registered(None))
            return
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


def restore(parts: MoveParts, activation: Activation, body: bytes) -> Payload:
    """A new instance for a closed activation, with the state that a payload carries.

    Raises:
        PayloadRejected, RehydrationFailed: the payload, or a part of it, cannot be taken.
        Exception: what the grain's constructor raised.
    """
    payload = unpack(body, bytes_max=parts.limits.payload_bytes_max)
    parts.catalog.build(activation)
    skipped = activation.run_sync(
        lambda: rehydrate(
            parts_of(activation.kind, activation.instance, activation.participants or ()),
            payload,
            parts.codec,
            skip_failing=activation.kind.on_participant_error == "skip",
        )
    )
    for part, error in skipped:
        log.warning("migration.part_skipped", grain=str(activation.id), part=part, exc_info=error)
    return payload


def answer_outcome(call: Call, outcome: MigrationOutcome) -> None:
    """Answer the control call that asked for a move."""
    call.on_answer(call, Answer(Outcome.VALUE, value=msgspec.msgpack.encode(outcome)))
