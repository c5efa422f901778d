"""All moves from and to one silo: begun, refused, and told what arrives for them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Collection, Iterable

import msgspec

from silo.activation.activation import Activation, State
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import GrainUnplaceable, MembershipUnavailable, SiloError
from silo.directory.membership import SiloStatus, Table, View
from silo.instances import parts_of, refusal_to_migrate
from silo.kinds import OnBusy, hosted_nowhere
from silo.migration import handover
from silo.migration.outcome import MigrationOutcome, MoveStatus
from silo.migration.participants import PARTICIPANT_PREFIX
from silo.migration.payload import refusals, schemas
from silo.moving.parts import MIGRATE, MoveOrder, MoveParts
from silo.moving.source import SourceMove
from silo.moving.target import TargetMove
from silo.persistence.state_part import is_system_part
from silo.routing.call import Answer, Call
from silo.tasks import Tasks
from silo.wire.frames import Ask, AskAnswer, Frame, Offer, OfferAnswer, Opened, Outcome, Withdraw

HURRIED_EVERY_OFFERS = 50
"""After so many offers they are written, though answers to other questions have come with these: making an offer takes
a while, and so does taking it in."""


class Moves:
    """All moves from and to one silo."""

    def __init__(self, parts: MoveParts) -> None:
        self._parts = parts
        self._ids = itertools.count(1)
        self._leaving: dict[int, SourceMove] = {}
        self._arriving: dict[tuple[SiloAddress, int], TargetMove] = {}
        self._waiting: deque[SourceMove] = deque()
        """Those that begin when others have ended."""
        self._free = parts.limits.moves_in_flight_max
        """How many may begin now."""
        self._offers = 0
        self._schemas: dict[str, dict[str, int]] = {}
        """What the grains of each kind hosted here can take, beside what they have once they are constructed."""
        self.tasks = Tasks("moves")
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True
        self._waiting.clear()
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
        on_busy: OnBusy | None = None,
        trace: str | None = None,
        *,
        avoiding: Collection[SiloAddress] = (),
        leave_by: float | None = None,
    ) -> asyncio.Future[MigrationOutcome]:
        """Begin to move an activation. A second move of it joins the first, whose target it may still change.

        Args:
            on_busy: how to treat running calls; None for what the kind says.
            avoiding: silos that placement shall not choose, unless there is no other.
            trace: the traceparent of what asked for it; None for whatever runs now.
            leave_by: the loop's time at which the grain moves though turns still run, which are left behind; None to
                give the move up instead.
        """
        row = self._parts.membership.view.named(str(to)) if to else None
        if to and (row is None or row.status is SiloStatus.JOINING or row.cordoned):
            # it may have joined, or been un-cordoned, a moment ago
            beginning = self._begin_after_refresh(activation, to, reason, force, on_busy, trace)
            return self.tasks.spawn(beginning, f"look for {to}")
        outcome = self._begin(activation, to, reason, force, on_busy, trace, avoiding)
        move: SourceMove | None = activation.move
        if leave_by is not None and move is not None:
            move.must_leave_by(leave_by)
        return outcome

    async def _begin_after_refresh(
        self,
        activation: Activation,
        to: str | SiloAddress,
        reason: str,
        force: bool,
        on_busy: OnBusy | None,
        trace: str | None,
    ) -> MigrationOutcome:
        with contextlib.suppress(MembershipUnavailable):  # then the view that there is must do
            await self._parts.membership.refresh()
        return await self._begin(activation, to, reason, force, on_busy, trace)

    def _begin(
        self,
        activation: Activation,
        to: str | SiloAddress | None,
        reason: str,
        force: bool,
        on_busy: OnBusy | None,
        trace: str | None,
        avoiding: Collection[SiloAddress] = (),
    ) -> asyncio.Future[MigrationOutcome]:
        target = self._target_of(activation, to, avoiding)
        if isinstance(target, str):
            return self._refused(activation, reason, target)
        why = self._why_not(activation, target, force)
        if why:
            return self._refused(activation, reason, why, target)
        move: SourceMove | None = activation.move
        if move is None:
            move = SourceMove(self, self._parts, activation, target, reason, on_busy, trace)
            self._waiting.append(move)
            self._start_waiting()
        else:
            move.retarget(target)
            move.treat_busy(on_busy)
        return move.outcome

    def _start_waiting(self) -> None:
        """Start those that wait, in order, as far as others have ended."""
        while self._free and self._waiting:
            move = self._waiting.popleft()
            if not move.outcome.done():  # it may have been given up meanwhile
                self._free -= 1
                move.outcome.add_done_callback(self._ended)
                move.start()

    def offer(self, target: SiloAddress, offer: Offer) -> None:
        """Send an offer; of many that are made at once, the first need not wait until the last is made."""
        link = self._parts.links.to(target)
        link.send(offer)
        self._offers += 1
        if self._offers % HURRIED_EVERY_OFFERS == 0:
            link.hurry()

    def _ended(self, _: asyncio.Future[MigrationOutcome]) -> None:
        self._free += 1
        self._start_waiting()

    def _target_of(
        self, activation: Activation, to: str | SiloAddress | None, avoiding: Collection[SiloAddress]
    ) -> SiloAddress | str:
        """Where to, or why nowhere."""
        view = self._parts.membership.view
        if to:
            row = view.named(str(to))
            if row is None:
                known = ", ".join(sorted(each.info.name for each in view.living()))
                return f"no living silo is called {to} (known: {known})"
            return row.silo
        try:
            return self._place(activation, avoiding)
        except GrainUnplaceable as error:
            return f"no other silo may host it: {error}"

    def _place(self, activation: Activation, avoiding: Collection[SiloAddress]) -> SiloAddress:
        view = self._parts.membership.view
        rows = tuple(row for row in view.table.rows if row.silo != self._parts.me and row.silo not in avoiding)
        elsewhere = View(Table(view.table.run, view.version, rows))
        try:
            return self._parts.placement.choose(activation.id, elsewhere).silo
        except GrainUnplaceable:
            if not avoiding:
                raise
            return self._place(activation, ())

    def _why_not(self, activation: Activation, target: SiloAddress, force: bool) -> str:
        """Why this move is refused at once; empty where it is not. Nothing has been stopped, so it costs nothing."""
        if target == self._parts.me:
            return "it is already there"
        row = self._parts.membership.view.row(target)
        if row is None or row.status is not SiloStatus.ACTIVE:
            status = row.status.name.lower() if row else "not in the cluster"
            return f"{target} is {status}; only an active silo takes grains"
        if row.cordoned:
            return f"{row.info.name} is cordoned: it takes no grains"
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
            hosted = [row.info.kinds for row in self._parts.membership.view.living()]
            why = hosted_nowhere(call.grain.kind, hosted) or "it has no activation, so nothing has to move"
            answer_outcome(call, MigrationOutcome(call.grain, MoveStatus.NOT_ACTIVE, reason=order.reason, why=why))
            return
        turns = {grain for grain, _ in call.path}
        if str(call.grain) in turns:
            why = "a turn of the grain waits for this move, which waits for that turn to end"
            answer_outcome(
                call, MigrationOutcome(call.grain, MoveStatus.REFUSED, self._parts.me, None, order.reason, why)
            )
            return
        outcome = self.begin(activation, order.to or None, order.reason, order.force, order.on_busy or None, call.trace)
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
        if row is None or row.status is SiloStatus.JOINING:
            return f"{parts.name} has only just joined, and has not read so yet: try again"
        if row.status is not SiloStatus.ACTIVE:
            return f"{parts.name} is leaving"
        full = parts.catalog.why_full()
        if full:
            return f"{parts.name} is {full}"
        if row.cordoned:
            return f"{parts.name} is cordoned: it takes no grains"
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
        fields = {
            name: schema
            for name, schema in offered.items()
            if not (name.startswith(PARTICIPANT_PREFIX) or is_system_part(name))  # known once the grain is constructed
        }
        if not fields:
            return ""
        known = self._schemas.get(kind.name)
        if known is None:
            known = self._schemas[kind.name] = schemas(parts_of(kind, object()))
        failures = refusals(known, fields)
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


def answer_outcome(call: Call, outcome: MigrationOutcome) -> None:
    """Answer the control call that asked for a move."""
    call.on_answer(call, Answer(Outcome.VALUE, value=msgspec.msgpack.encode(outcome)))
