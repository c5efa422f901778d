"""One move away from here: the shell of the handover at its source."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from silo.activation.activation import Activation, State, activation_failed
from silo.directory.addresses import Entry, SiloAddress
from silo.directory.contract import Registration
from silo.directory.errors import GrainMoved, MembershipUnavailable, SiloError, SiloFenced
from silo.grain_records import Fate
from silo.instances import parts_of, refusal_to_migrate
from silo.kinds import OnBusy
from silo.logs import get_logger
from silo.migration import handover
from silo.migration.handover import Source, SourcePhase
from silo.migration.lifecycle import ActivationReason, DeactivationReason, Departure, MigrationNotice
from silo.migration.outcome import MigrationOutcome, MoveStatus
from silo.migration.participants import Part
from silo.migration.payload import PAYLOAD_FORMAT, Payload, dehydrate, pack, schemas
from silo.moving.parts import MoveParts
from silo.moving.restored import restore
from silo.persistence.state_part import StatePart
from silo.soft_state import SoftStatePart
from silo.wire.frames import Ask, Offer, Withdraw

if TYPE_CHECKING:
    from silo.moving.moves import Moves
    from silo.telemetry.moves import MoveRecord

log = get_logger(__name__)

PYTHON = ".".join(platform.python_version_tuple()[:2])
MEMBERSHIP_PAUSE_S = 0.2
"""How long a source that must know who lives waits before it asks the membership table again."""


class SourceMove:
    """One move away from here: carries out what the core orders, and tells it what came of it."""

    def __init__(
        self,
        moves: Moves,
        parts: MoveParts,
        activation: Activation,
        target: SiloAddress,
        reason: str,
        on_busy: OnBusy | None,
        trace: str | None,
    ) -> None:
        assert activation.entry is not None or activation.state in (State.REGISTERING, State.STARTING)
        self._parts = parts
        self._go_to(target)
        self.outcome: asyncio.Future[MigrationOutcome] = asyncio.get_running_loop().create_future()
        self._moves = moves
        self._activation = activation
        self._reason = reason
        self._on_busy: OnBusy = on_busy or activation.kind.on_busy
        self._on_busy_by = "its kind says" if on_busy is None else "it was asked to"
        self._number = moves.enter(self)
        self._core: Source | None = None
        self._leave_by: float | None = None
        """When what still runs is left behind, in the loop's time; None for a move that is rather given up."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the step under way."""
        self._ask_timer: asyncio.TimerHandle | None = None
        """Of the question that is out, which may be a second one while the grain drains."""
        self._paused_at: float | None = None
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

    def start(self) -> None:
        """Begin, as far as that can be done now."""
        try:
            self._start()
        except Exception as error:
            self._step_failed(error)

    def _start(self) -> None:
        activation = self._activation
        if activation.state in (State.REGISTERING, State.STARTING):
            self._spawn(self._when_open, "wait until it is open")
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
            self._go_to(target)
        elif target != self.target and self._core.is_retargetable:
            self._moves.leave(self._number)
            self._number = self._moves.enter(self)  # an answer of the earlier target counts no more
            self._go_to(target)
            self.post(handover.Retargeted())

    def _go_to(self, target: SiloAddress) -> None:
        self.target = target
        row = self._parts.membership.view.row(target)
        self._target_name = row.info.name if row is not None else str(target)

    def treat_busy(self, on_busy: OnBusy | None) -> None:
        """The last order that says how to treat running calls wins, as long as any may run."""
        if on_busy is None:
            return
        self._on_busy = on_busy
        self._on_busy_by = "it was asked to"
        if self._waits_for_calls:
            self._treat_running_calls()

    def must_leave_by(self, leave_by: float) -> None:
        """The silo ends: at that time of the loop the grain moves, whatever still runs."""
        self._leave_by = leave_by if self._leave_by is None else min(leave_by, self._leave_by)
        if self._waits_for_calls:
            self._time_drain()

    @property
    def _waits_for_calls(self) -> bool:
        core = self._core
        return (
            core is not None and core.phase is SourcePhase.DRAINING and not core.drained and self._paused_at is not None
        )

    @property
    def successor(self) -> str:
        """The id that the activation at the target has, or would have; empty before one was asked."""
        return self._core.successor if self._core is not None else ""

    def give_up(self, why: str) -> None:
        """The step under way cannot be done, whichever it is."""
        if self._core is None:
            self._finish(MoveStatus.ABORTED, why)
        else:
            self.post(handover.Failed(why))

    def post(self, event: handover.Event) -> None:
        if isinstance(event, handover.AskAnswered) and self._ask_timer is not None:
            self._ask_timer.cancel()
        if self._core is not None:
            self._carry_out(self._core.on(event))

    def _carry_out(self, orders: Iterable[handover.Order]) -> None:
        activation = self._activation
        for order in orders:
            if self._record is not None:
                self._record.on(order)
            match order:
                case handover.SendAsk():
                    self._ask()
                case handover.Drain():
                    if not self._drains_at_once():
                        self._spawn(self._drain, "drain")
                case handover.Deactivate():
                    self._deactivate()
                case handover.Dehydrate():
                    self._dehydrate()
                case handover.SendOffer(payload):
                    self._offer(payload)
                case handover.Forward(entry):
                    self._forward(entry)
                case handover.Release():
                    self._parts.catalog.let_go(activation)
                case handover.Finish(status, why):
                    self._finish(status, why)
                case handover.SendWithdraw():
                    if not self._parts.membership.view.is_dead(self.target):
                        self._parts.links.to(self.target).send(Withdraw(self._number))
                case handover.Fence(expected):
                    if activation.state is State.GONE:
                        self._parts.catalog.take_back(activation)
                    self._spawn(partial(self._fence, expected), "fence")
                case handover.Resume(reactivate, why):
                    self._spawn(partial(self._resume, reactivate, why), "resume")
                case handover.Discard(entry):
                    self._parts.catalog.reroute_all(activation, entry)
                    self._parts.catalog.let_go(activation)
                case _:
                    raise AssertionError(f"an order for the target: {order}")

    def _spawn(self, step: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._moves.tasks.spawn(self._step(step), f"{name} {self._activation.id}")

    async def _step(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await step()
        except SiloFenced as error:
            self._finish(MoveStatus.LOST, str(error))
        except GrainMoved as error:
            self._finish(MoveStatus.NOT_ACTIVE, str(error))
        except Exception as error:
            self._step_failed(error)

    def _step_failed(self, error: Exception) -> None:
        log.error("migration.step_failed", grain=str(self._activation.id), exc_info=error)
        self.give_up(f"{type(error).__name__}: {error}")

    def _set_timer(self, timeout_s: float, why: str) -> None:
        self._cancel_timer()
        self._timer = self._activation.loop.call_later(timeout_s, self.post, handover.TimedOut(why))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------------------------------------------------ steps

    def _ask(self) -> None:
        activation = self._activation
        fields: list[Part] = [SoftStatePart(field, activation.instance) for field in activation.kind.soft_state]
        fields += [StatePart(field, activation.instance, weighs=True) for field in activation.kind.persistent]
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
        self._ask_timer = self._activation.loop.call_later(timeout_s, self.post, handover.TimedOut(why))
        self._parts.links.to(self.target).send(Ask(self._number, activation.id, size, schemas(self._all_parts())))

    def _all_parts(self) -> tuple[Part, ...]:
        activation = self._activation
        return parts_of(
            activation.kind, activation.instance, activation.participants or (), activation.system_participants
        )

    def _hold(self) -> bool:
        """Let no new turn start, unless that is so already. False where there is nothing to drain any more."""
        activation = self._activation
        if self._core is None or self._core.phase is not SourcePhase.DRAINING:
            return False  # the move was given up meanwhile
        if self._paused_at is not None:
            return True
        if activation.state is not State.OPEN:
            self.post(handover.Failed(f"it was {activation.state.value} before it could be drained"))
            return False
        self._paused_at = self._parts.clock()
        self._note(Fate.MOVING, f"to {self._target_name}")
        activation.hold()
        return True

    @property
    def _drain_timeout_s(self) -> float:
        if self._leave_by is not None:
            return max(0.0, self._leave_by - asyncio.get_running_loop().time())
        return self._activation.kind.drain_timeout_s or self._parts.limits.drain_timeout_s

    def _drains_at_once(self) -> bool:
        """Drain it, where nothing runs, and it need be told nothing: that takes no task. Whether that is so."""
        activation = self._activation
        if activation.kind.hooks.on_migrating is not None or activation.work is not None or activation.busy_count:
            return False
        if not self._hold():
            return True  # there is nothing to drain any more
        if not activation.closes_at_once():
            return False
        self.post(handover.Drained())
        return True

    async def _drain(self) -> None:
        activation = self._activation
        timeout_s = self._drain_timeout_s
        hook = activation.kind.hooks.on_migrating
        if hook is not None:
            notice = MigrationNotice(self._reason, self._target_name, timeout_s)

            async def give_notice() -> None:
                await hook(activation.instance, notice)
                if activation.work is None or not activation.work.block:
                    self._hold()  # in the very step in which the hook ends: nothing slips in between

            try:
                await activation.in_hook(give_notice, min(self._parts.limits.notice_timeout_s, timeout_s))
            except SiloFenced:
                raise
            except Exception as error:
                log.warning("migration.notice_failed", grain=str(activation.id), exc_info=error)
        if not await self._unblocked() or not self._hold():
            return
        self._time_drain()
        self._treat_running_calls()
        if await activation.drained():
            self.post(handover.Drained())

    async def _unblocked(self) -> bool:
        """Wait for the end of what the grain does not want to be moved in; False where the move ends before that."""
        work = self._activation.work
        if work is None or not work.block:
            return True
        why = work.block
        if self._on_busy == "stay" and self._leave_by is None:
            self.post(handover.Failed(f"it is busy: {why}, and {self._on_busy_by} stay"))
            return False
        timeout_s = self._drain_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await work.unblocked()
        except TimeoutError:
            if self._leave_by is None:
                self.post(handover.TimedOut(f"it was not to be moved for {timeout_s} s: {why}"))
                return False
            log.warning("migration.block_ignored", grain=str(self._activation.id), why=why)
        return True

    def _time_drain(self) -> None:
        self._cancel_timer()
        timeout_s = self._drain_timeout_s
        loop = asyncio.get_running_loop()
        if self._leave_by is None:
            self._timer = loop.call_later(timeout_s, self._drained_too_late, timeout_s)
        else:
            self._timer = loop.call_later(timeout_s, self._leave_behind)

    def _drained_too_late(self, timeout_s: float) -> None:
        running = self._activation.busy_with
        self.post(handover.TimedOut(f"its running calls did not end within {timeout_s} s: {running}"))

    def _leave_behind(self) -> None:
        if self._waits_for_calls:
            running = self._activation.busy_with
            turns = self._activation.leave_behind()
            log.warning("migration.turns_left_behind", grain=str(self._activation.id), turns=turns, running=running)

    def _treat_running_calls(self) -> None:
        running = self._activation.busy_count
        match self._on_busy:
            case "stay" if running and self._leave_by is None:
                what = f"{running} calls or tasks run ({self._activation.busy_with})"
                self.post(handover.Failed(f"it is busy: {what}, and {self._on_busy_by} stay"))
            case "interrupt":
                self._activation.interrupt()
            case _:
                pass

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

        self._spawn(run, "deactivate")

    def _dehydrate(self) -> None:
        activation, parts = self._activation, self._parts
        assert activation.entry is not None
        departure = Departure(self._reason, self._target_name, self._deactivation_error)
        now = activation.loop.time()
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
                PYTHON,
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
        self._moves.offer(self.target, offer)

    async def _fence(self, expected: Entry | None) -> None:
        activation = self._activation
        await activation.right.held()
        mine = Registration(activation.id, self._parts.me, activation.activation_id, expected, activation.epoch)
        entry = await self._parts.catalog.register(mine, until_answered=True)
        while entry is None:  # whoever has removed the row has read in the membership table that its silo is dead
            try:
                await self._parts.membership.refresh()
            except MembershipUnavailable:
                await asyncio.sleep(MEMBERSHIP_PAUSE_S)
            else:
                break
        self.post(handover.Registered(entry))

    def _forward(self, entry: Entry) -> None:
        """The frozen instance stays until the target has opened or died; its calls need not wait for that."""
        if self._record is not None:
            self._record.held(call.trace for call in self._activation.turns.waiting)
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
        departed_epoch = activation.epoch
        activation.entry = self._core.entry
        self._parts.cache.forget_grain(activation.id)
        if activation.has_left_behind:  # what runs on has that instance; turns that begin now must not share it
            await self._rebuild()
            return
        try:
            if activation.states is not None:
                await activation.states.regain(departed_epoch)
            if reactivate:
                activation.state = State.STARTING
                await catalog.beginnings.run_on_activate(activation, ActivationReason.MIGRATION_ABORTED)
        except SiloFenced:
            raise
        except Exception as error:
            log.warning("migration.reactivation_failed", grain=str(activation.id), exc_info=error)
            await self._rebuild()
            return
        activation.open()

    async def _rebuild(self) -> None:
        activation, catalog = self._activation, self._parts.catalog
        activation.state = State.STARTING
        try:
            payload = restore(self._parts, activation, self._payload or self._packed_again())
            if activation.states is not None:
                await activation.states.regain(payload.from_epoch)
            await catalog.beginnings.run_on_activate(activation, ActivationReason.MIGRATION_ABORTED)
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
        self._cancel_timer()
        if self._ask_timer is not None:
            self._ask_timer.cancel()
        self._moves.leave(self._number)
        activation = self._activation
        if activation.move is self:
            activation.move = None
            activation.end_if_wanted()
        outcome = MigrationOutcome(
            activation.id,
            status,
            self._parts.me,
            self.target,
            self._reason,
            why,
            0.0 if self._paused_at is None else self._parts.clock() - self._paused_at,
            len(self._payload),
            self._held_calls,
            self._core.epoch if self._core is not None else 0,
            self._parts.name,
            self._target_name,
            self._on_busy,
        )
        if status in (MoveStatus.ABORTED, MoveStatus.LOST):
            self._note(Fate.MOVE_ABORTED, f"to {self._target_name}: {why}")
        if self._record is not None:
            self._record.ended(outcome)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("migration.done" if outcome.moved else "migration.not_done", outcome=outcome)
        self.outcome.set_result(outcome)

    def _note(self, fate: Fate, why: str) -> None:
        chronicle, now = self._parts.catalog.premises.chronicle, self._activation.loop.time()
        chronicle.note(self._activation.id, fate, why, now)

    def end_record(self) -> None:
        """The silo ends in the middle of it."""
        if self._record is not None:
            self._record.failed("the silo ended")
