"""The router of a silo: it alone decides where a call goes: here, there, or nowhere yet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from silo.activation.activation import Activation
from silo.activation.catalog import Catalog
from silo.chronicle import Chronicle
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.errors import (
    CallExpired,
    GrainKindUnknown,
    GrainUnplaceable,
    NotExecuted,
    SiloError,
    TooManyHops,
)
from silo.directory.lives import Lives
from silo.directory.membership import Membership, View
from silo.directory.registrar import Registrar
from silo.grain_records import SearchReport
from silo.kinds import GrainKind
from silo.logs import get_logger
from silo.placement.decision import Placement
from silo.routing.arrivals import Arrivals
from silo.routing.book import CallBook
from silo.routing.call import HERE, Answer, Call, ValueCodec, keep
from silo.routing.claims import Claims
from silo.routing.comebacks import TRIES_AT_ONCE, Comebacks
from silo.routing.forwarded_calls import ForwardedCalls, Key
from silo.routing.limits import RoutingLimits
from silo.routing.placings import Placings
from silo.routing.resolution import Destination, Resolver
from silo.routing.trails import Trails
from silo.routing.unreached import Unreached
from silo.routing.waking import Chance
from silo.wire.frames import (
    OUTCOMES,
    VALUE,
    Admitted,
    Cancel,
    Claim,
    ClaimAnswer,
    Flag,
    Forwarded,
    Frame,
    Load,
    Outcome,
    Reply,
    Request,
)

if TYPE_CHECKING:
    from silo.messaging.links import Links
    from silo.telemetry import Telemetry

log = get_logger(__name__)


class LoadBook(Protocol):
    """What knows how much each silo has to do; see `silo.loads`."""

    def own_report(self) -> Load: ...

    def answered(self, grain: GrainId, silo: SiloAddress) -> None: ...


class ControlHandler(Protocol):
    """What answers control calls, such as `migrate`, at the grain's silo."""

    def on_control(self, call: Call, activation: Activation | None) -> None: ...


class Router:
    """Routes the calls of one silo: those made here, those of its clients, and those that arrive for its grains."""

    def __init__(
        self,
        me: SiloAddress,
        *,
        codec: ValueCodec,
        links: Links,
        catalog: Catalog,
        registrar: Registrar,
        cache: DirectoryCache,
        membership: Membership,
        placement: Placement,
        chronicle: Chronicle,
        control: ControlHandler,
        limits: RoutingLimits,
        book: CallBook,
        rng: random.Random,
        loads: LoadBook,
        lives: Lives,
        seek: Callable[[GrainId], Awaitable[Entry | None]],
        telemetry: Telemetry | None = None,
    ) -> None:
        self.me = me
        self.book = book
        self._codec = codec
        self._links = links
        self._catalog = catalog
        self._cache = cache
        self._membership = membership
        self._control = control
        self._limits = limits
        self._rng = rng
        self._loads = loads
        self._telemetry = telemetry
        self.dead: frozenset[SiloAddress] = frozenset()
        """The silos that the newest view declares dead: told before anything is done about it."""
        self._going: frozenset[SiloAddress] = frozenset()
        """Those that have said that they will leave."""
        self._avoided: frozenset[SiloAddress] = frozenset((me,))
        """Both, and this one: an entry that names one of them sends no call there."""
        self._given_up: frozenset[SiloAddress] = frozenset()
        """Those for which all has been done."""
        self._cordoned: frozenset[SiloAddress] = frozenset()
        self._placings = Placings(book)
        self.trails = Trails()
        """Where calls of other silos were sent on."""
        self._arrivals = Arrivals(limits.arrived_calls_max, limits.arrived_bytes_max)
        self.forwarded = ForwardedCalls(limits.forwarded_noted_max)
        """What is known of the calls that come here by way of other silos."""
        self._claims = Claims(
            look_up=registrar.lookup,
            view=lambda: membership.view,
            send=self._tell,
            fail=book.unknown,
        )
        self._comebacks = Comebacks(lambda call: book.lanes.again(call), limits, rng, telemetry)
        self._unreached = Unreached(lambda call: book.lanes.again(call), limits.retry_pause_last_s)
        self._loop = asyncio.get_running_loop()
        self._resolver = Resolver(
            me,
            codec=codec,
            catalog=catalog,
            registrar=registrar,
            membership=membership,
            placement=placement,
            chronicle=chronicle,
            limits=limits,
            rng=rng,
            is_going=self.is_going,
            lives=lives,
            seek=seek,
            learn=cache.learn,
            depart=self._depart,
        )
        self.sought = self._resolver.sought
        """The grains of which that is so."""
        self.is_resolving = self._resolver.is_resolving
        """Whether calls wait until a grain is found or placed."""
        lives.on_settled = lambda: self._resolver.on_chance(Chance.DIRECTORY_SETTLED)
        book.attach(self.route, self._recall)

    async def close(self) -> None:
        self._unreached.close()
        self._comebacks.close()
        await self._claims.close()
        await self._resolver.close()

    @property
    def arrived_count(self) -> int:
        """How many calls of others are here, queued or running."""
        return len(self._arrivals)

    def search(self, grain: GrainId) -> SearchReport | None:
        """How the search for a grain stands; None where no call waits for one."""
        return self._resolver.search(grain)

    def start_over(self, grain: GrainId) -> None:
        """Try at once to find or place a grain that calls wait for, as if no try had failed."""
        self._resolver.start_over(grain)

    async def emptied(self) -> None:
        """Wait until no call of another silo is here: each was answered, or sent on."""
        await self._arrivals.emptied()

    # -------------------------------------------------------------------------------------------------------- decisions

    def route(self, call: Call) -> None:
        """Send a call on its way, by what is known now."""
        grain = call.grain
        if self.is_resolving(grain):
            self._resolver.wait(call)
            return
        activation = self._catalog.get(grain)
        if activation is not None:
            self._here(call, activation)
            return
        entry = self._cache.get(grain)
        if entry is not None and entry.silo not in self._avoided:
            self._send(call, entry, entry.silo, None)
            return
        placing = self._placing_of(call)
        if placing is not None:
            self._send_towards(call, placing)
            return
        self._resolver.wait(call)

    def _placing_of(self, call: Call) -> Destination | None:
        """Where a call made here, which is still out, is having the grain activated: a later one follows it there.

        Of calls of other silos those of one caller follow each other: on roads of unlike length they would lose their
        order.
        """
        if call.origin is not None:
            return self._placing_for_others_of(call)
        return self._placings.of(call.grain)

    def _placing_for_others_of(self, call: Call) -> Destination | None:
        """None as well where the silo chosen is on its way out; going there in vain costs no more than a hop."""
        destination = self.trails.of(call, self._loop.time())
        silo = destination.place_on if destination is not None else None
        if silo is None or silo in self._going or not self._membership.view.takes_placements(silo):
            return None
        return destination

    def route_all(self, calls: Iterable[Call]) -> None:
        """Send on, in order, calls that waited for an activation which is no longer here."""
        for call in calls:
            if not call.answered and not call.cancelled:
                call.target = None
                self.route(call)

    def _here(self, call: Call, activation: Activation) -> None:
        if call.flags & Flag.CONTROL:
            if call.flags & Flag.INNER:
                self._catalog.places.hasten(activation)
            self._control.on_control(call, activation)
            return
        if call.origin is None:
            try:
                if not self.book.lanes.enter(call, HERE, tracked=False):
                    call.payload(self._codec)
                    return
                if call.target is None:
                    call.isolate(self._codec)
            except SiloError as error:
                call.on_answer(call, Answer.failed(error))
                return
            call.target = HERE
        activation.admit(call, forced=call.hops > 0 or call.tries > 0)

    def on_forwarded_start(self, call: Call) -> None:
        """A turn of a call that was forwarded starts: later calls of its caller need not wait for it any more.

        Not before: what only stands in the queue may have to move on with its grain, behind later calls that went
        straight to the new place.
        """
        if call.origin is not None:
            self._tell(call.origin, Admitted(call.id, call.grain))

    def _send_towards(self, call: Call, destination: Destination) -> None:
        entry = destination.entry
        silo = entry.silo if entry is not None else cast("SiloAddress", destination.place_on)
        self._send(call, entry, silo, destination.expected)

    def _send(self, call: Call, entry: Entry | None, silo: SiloAddress, expected: Entry | None) -> None:
        """Put the call on the link to the silo that serves its grain by this entry; or, without one, that shall."""
        link = self._links.of_silo(silo)
        name = link.peer.name if link is not None else str(silo)
        flags = call.flags & ~(Flag.PLACED | Flag.FORWARDED)
        if entry is None:
            flags |= Flag.PLACED
        origin = call.origin
        on_written: Callable[[], None] | None = None
        try:
            if origin is None:
                if not self.book.lanes.enter(call, name, tracked=True):
                    call.payload(self._codec)
                    return
                if self._unreached.silos and silo in self._unreached.silos:
                    call.payload(self._codec)
                    self._not_reached(call, silo, NotExecuted(f"{call.grain}: {silo} could not be reached just now"))
                    return
            elif call.hops >= self._limits.hops_max:
                self._send_back(call)
                return
            else:
                if call.leg == 0:
                    place_on = silo if entry is None else None
                    self.trails.note(call, Destination(entry, place_on, expected), self._loop.time())
                self._hand_on(call, silo, entry)
                flags |= Flag.FORWARDED
            if link is None:
                link = self._links.to(silo)
            request = call.as_request(
                self._codec, origin or self.me, flags, entry.epoch if entry is not None else 0, expected
            )
            if origin is None:
                call.sent_at = self._loop.time()
                call.forwarder = None
            else:  # should it not be written, the frame is all that is left of the call
                request.left_s = call.left_s(self._loop.time())
            call.target = name
            if len(request.payload) >= self.book.large_bytes and call.lane is not None:
                on_written = self.book.lanes.block(call)
            call.outgoing = link.send(request, call.deadline, on_written, origin is not None or call.tries > 0)
        except SiloError as error:
            call.target = None
            if on_written is not None:
                on_written()
            self.book.lanes.leave(call)
            call.on_answer(call, Answer.failed(error))

    def _send_back(self, call: Call) -> None:
        """A call of another silo goes no further: that silo has it wait, and looks for the grain anew.

        It may have been running in circles, or was kept from a place on its way. Either may soon be over.
        """
        kept_by = call.obstacle if isinstance(call.obstacle, NotExecuted) else None
        circles = TooManyHops(f"{call.grain}: forwarded {self._limits.hops_max} times; its silo keeps changing")
        call.on_answer(call, Answer(Outcome.MOVED, error=kept_by or circles))

    def _hand_on(self, call: Call, silo: SiloAddress, entry: Entry | None) -> None:
        """A call of another silo goes further: it is that silo's business now, and the next one's."""
        call.hops += 1
        call.leg += 1
        self._arrivals.remove(call.origin, call.id)
        if self._telemetry is not None:
            self._telemetry.forwarded()
        if call.origin is not None and call.origin != silo:
            self._tell(call.origin, Forwarded(call.id, silo, entry, call.leg))

    def _depart(self, call: Call, destination: Destination) -> None:
        """Send one call to where its grain was found to be."""
        activation = self._catalog.get(call.grain)
        if activation is None and destination.place_on == self.me:
            kind = self._catalog.kinds.get(call.grain.kind)
            if kind is None:
                call.on_answer(call, Answer.failed(kind_unknown(call.grain, self.me)))
                return
            activation = self._activate(call, kind, destination.expected)
        if activation is not None:
            self._here(call, activation)
        elif destination.entry is None and destination.place_on is None:
            if call.is_control:
                self._control.on_control(call, None)
            else:
                self.route(call)  # it joined while only control calls waited, for which nothing is placed
        else:
            if destination.entry is None and call.origin is None:
                self._placings.note(call, destination)
            self._send_towards(call, destination)

    def _activate(self, call: Call, kind: GrainKind, expected: Entry | None) -> Activation:
        return self._catalog.activate(call.grain, kind, expected, call.trace, inner=bool(call.flags & Flag.INNER))

    # --------------------------------------------------------------------------------------------------------- arrivals

    def on_request(self, request: Request) -> None:
        """A call from another silo."""
        flags = request.flags
        call = Call(  # by position: by name takes twice the time
            request.id,
            request.grain,
            request.method,
            request.caller,
            None if request.left_s is None else self._loop.time() + request.left_s,
            self._reply,
            None,
            None,
            request.payload,
            request.codec,
            0,
            None,
            request.path,
            flags,
            request.hops,
            request.leg,
            request.trace,
            request.reply_to,
            request.hint,
            request.epoch,
        )
        if request.reply_to == self.me:  # it came back to its caller's silo, forwarded: its book has it
            own = self.book.get(request.id)
            if own is None:
                return
            self._come_home(own, request)
            return
        if self._arrivals.given_up and self._arrivals.was_given_up(request.reply_to, request.id):
            return  # its caller has gone: it was on its way by another silo when that was said
        if not flags & (Flag.FORWARDED | Flag.CONTROL) and self._run_arrived(call):
            return
        forced = flags & Flag.FORWARDED != 0
        if forced and not self._may_come(call):
            return  # its caller has been told that it will not run
        refusal = self._arrivals.take(call, forced=forced)
        if refusal is not None:
            call.on_answer(call, Answer.failed(refusal))
            return
        if self.trails and call.leg == 0 and (trail := self._trail_of(call)) is not None:
            self._send_towards(call, trail)
            return
        activation = self._catalog.get(call.grain)
        if activation is not None and not self.is_resolving(call.grain):  # as for nearly all
            self._here(call, activation)
            return
        if (
            request.flags & Flag.PLACED
            and self._catalog.get(request.grain) is None
            and not self.is_resolving(request.grain)
        ):
            self._place_here(call, request.expected)
            return
        entry = self._cache.get(call.grain)
        if entry is not None and entry.epoch <= request.epoch and self._catalog.get(call.grain) is None:
            self._cache.forget(entry)  # the sender went by it, and it is not true
        self.route(call)

    def _run_arrived(self, call: Call) -> bool:
        """Run another silo's call at once where that can be, as `AtOnce` does those made here; only one that has to
        wait counts among those that are here."""
        activation = self._catalog.get(call.grain)
        if (
            activation is None
            or self.trails
            or self.is_resolving(call.grain)
            or not self._arrivals.has_room_for(call)
            or not activation.begin(call)
        ):
            return False
        call.on_answer = keep
        activation.run_begun(call)
        if call.kept is not None:
            self._answer(call, call.kept)
        else:
            call.on_answer = self._reply
            self._arrivals.take(call, forced=True)
        return True

    def _trail_of(self, call: Call) -> Destination | None:
        """Where the calls before this one were sent on from here, unless that silo is gone."""
        destination = self.trails.of(call, self._loop.time())
        if destination is None:
            return None
        silo = destination.entry.silo if destination.entry is not None else destination.place_on
        return None if silo == self.me or silo in self.dead else destination

    def _may_come(self, call: Call) -> bool:
        """Whether a forwarded call may run here; it may unless it was claimed before it came."""
        assert call.origin is not None
        return self.forwarded.came(Key(call.origin, call.id), call.deadline, self._loop.time())

    def _come_home(self, call: Call, request: Request) -> None:
        """A call made here was forwarded back here: its grain has moved to this silo, or shall be activated on it."""
        call.leg = request.leg
        self._placings.end(call.grain)  # it did not stay where it was sent: neither shall it go there again
        activation = self._catalog.get(call.grain)
        if activation is None:
            entry = self._cache.get(call.grain)
            if entry is not None:
                self._cache.forget(entry)  # the call went by it, and it is not true
            kind = self._catalog.kinds.get(call.grain.kind)
            if (
                request.flags & Flag.PLACED
                and kind is not None
                and self._takes_placements
                and not self.is_resolving(call.grain)
            ):
                why_full = self._catalog.why_full()
                if why_full:
                    self._comebacks.elsewhere(call, self._unplaceable_here(call, why_full))
                    return
                activation = self._activate(call, kind, request.expected)
        if activation is None:
            self._comebacks.again(call, TooManyHops(f"{call.grain}: it moved on while it was called"))
            return
        call.hops = request.hops
        call.target = HERE
        if call.is_control:
            self._control.on_control(call, activation)
        else:
            activation.admit(call, forced=True)
        self.book.lanes.leave(call)

    @property
    def _takes_placements(self) -> bool:
        """Whether this silo takes new activations."""
        return self._membership.view.takes_placements(self.me)

    def _place_here(self, call: Call, expected: Entry | None) -> None:
        kind = self._catalog.kinds.get(call.grain.kind)
        if kind is None:
            call.on_answer(call, Answer.failed(kind_unknown(call.grain, self.me)))
        elif not self._takes_placements:
            call.on_answer(call, Answer(Outcome.MOVED))
        elif self._catalog.is_taking_back(call.grain):
            self._resolver.wait(call)
        elif why_full := self._catalog.why_full():
            assert call.origin is not None
            self._tell(call.origin, self._loads.own_report())  # it gets there first, and the call is placed by it
            call.on_answer(call, Answer(Outcome.MOVED, error=self._unplaceable_here(call, why_full)))
        else:
            self._here(call, self._activate(call, kind, expected))

    def _unplaceable_here(self, call: Call, why: str) -> GrainUnplaceable:
        return GrainUnplaceable(f"{self.me} was to host {call.grain}, and is {why}")

    def _reply(self, call: Call, answer: Answer) -> None:
        """Send the answer of another silo's call straight to that silo."""
        self._arrivals.remove(call.origin, call.id)
        if not call.answered:
            self._answer(call, answer)

    def _answer(self, call: Call, answer: Answer) -> None:
        call.answered = True
        assert call.origin is not None
        if call.origin not in self.dead:
            answer.send_on(self._links.to(call.origin), call.id, self._codec)

    def _tell(self, silo: SiloAddress, frame: Frame) -> None:
        if silo == self.me:
            self.on_frame(self.me, frame)
        elif silo not in self.dead:
            self._links.to(silo).send(frame)

    def on_frame(self, peer: SiloAddress, frame: Frame) -> None:
        """What else silos tell each other of calls."""
        match frame:
            case Reply():
                self.on_reply(frame)
            case Request():
                self.on_request(frame)
            case Cancel(id=call_id, reply_to=origin):
                call = self._arrivals.remove(origin, call_id)
                if call is None:
                    self._arrivals.give_up(origin, call_id)
                else:  # its caller may still want to know whether it had started
                    because = f": {call.obstacle}" if call.obstacle is not None else ""
                    what = f"{call.grain}.{call.method}: the call was withdrawn before it was started{because}"
                    expired = CallExpired(what)
                    has_not_started = self._withdraw_here(call)
                    call.on_answer(call, Answer.failed(expired if has_not_started else call.timed_out(str(self.me))))
            case Forwarded(id=call_id, to=silo, entry=entry, leg=leg):
                if entry is not None:
                    self._cache.learn(entry)
                call = self.book.get(call_id)
                if call is not None and leg > call.leg:  # else a silo further on its way has said more already
                    call.leg = leg
                    call.target = str(silo)
                    call.forwarder = peer
                    self.book.lanes.scatter(call)
            case Admitted(id=call_id):
                call = self.book.get(call_id)
                if call is not None:
                    if call.target == str(peer):
                        call.forwarder = None
                    self.book.lanes.leave(call)
            case Claim():
                self._tell(peer, self._claimed(peer, frame))
            case ClaimAnswer():
                self._claims.on_answer(frame)
            case _:
                log.warning("router.frame_ignored", frame=type(frame).__name__)

    def _claimed(self, origin: SiloAddress, claim: Claim) -> ClaimAnswer:
        """Whether a call is here that may have been on its way; if not, it shall not be run here any more."""
        if self._arrivals.has(origin, claim.id):
            return ClaimAnswer(claim.id, True)
        now = self._loop.time()
        key = Key(origin, claim.id)
        deadline = None if claim.left_s is None else now + claim.left_s
        if not self.forwarded.refuse(key, claim.grain, deadline, now):
            return ClaimAnswer(claim.id, False)  # it was here, and has been answered or sent on: that is on its way
        activation = self._catalog.get(claim.grain)
        if activation is None or activation.entry is None:
            return ClaimAnswer(claim.id, False)
        open_s = None if activation.opened_at is None else now - activation.opened_at
        return ClaimAnswer(claim.id, False, key in activation.left_waiting, open_s)

    def on_reply(self, reply: Reply) -> None:
        call = self.book.get(reply.id)
        if reply.entry is not None:
            self._cache.learn(reply.entry)
        if call is None:  # late: it was cancelled, or its deadline passed
            if self._telemetry is not None:
                self._telemetry.answered_late()
            return
        placed = self._placings.end(call.grain) if self._placings.noted else None
        if placed is not None and placed.place_on is not None:
            self._loads.answered(call.grain, placed.place_on)
        if reply.outcome == VALUE:
            self.book.returned(call, reply)
            return
        if reply.outcome == Outcome.MOVED:
            self._came_back(call, reply)
            return
        call.on_answer(call, Answer(OUTCOMES[reply.outcome], None, None, reply.payload, reply.codec, reply.entry))

    def _came_back(self, call: Call, reply: Reply) -> None:
        """It has not run: its grain is not where it was sent, or has no place there, or it was sent on too often."""
        entry = self._cache.get(call.grain)
        if entry is not None and reply.entry is None:
            self._cache.forget(entry)  # it led nowhere, be it by way of others
        why = self._codec.decode_error(reply.payload, reply.codec) if reply.payload else None
        if isinstance(why, NotExecuted) and not isinstance(why, TooManyHops):
            self._comebacks.elsewhere(call, why)
        else:
            changed = f"{call.grain}: its silo has changed {call.tries + 1} times while it was called"
            self._comebacks.again(call, why if isinstance(why, TooManyHops) else TooManyHops(changed))

    def _not_reached(self, call: Call, silo: SiloAddress, why: NotExecuted) -> None:
        """Its silo could not be reached, and may soon be known dead: try until the deadline; that uses up no tries."""
        call.obstacle = why
        if self._is_to_be_reached(silo):
            call.target = None
            if self._telemetry is not None:
                self._telemetry.retried()
            self._unreached.wait(call, silo)
        elif call.tries < TRIES_AT_ONCE:
            call.tries += 1
            self._comebacks.send(call, 0.0)
        else:
            self._comebacks.send(call, self._limits.retry_pause_last_s)

    def _is_to_be_reached(self, silo: SiloAddress) -> bool:
        """Whether what waits for this silo would go nowhere else."""
        return self._membership.view.is_alive(silo) and silo not in self._going

    def on_reached(self, peer: SiloAddress) -> None:
        """A connection to the peer is there."""
        self._claims.on_back(peer)
        self._unreached.release(peer)

    # ----------------------------------------------------------------------------------------------------------- losses

    def on_lost(self, peer: SiloAddress, unsent: Iterable[Frame], unknown: Iterable[Frame], because: str) -> None:
        """A link has ended: what never left is tried again, what may have arrived has an unknown outcome."""
        self._placings.forget_silo(peer)
        retry = list(self._own_calls(unsent))
        not_sent = {call.id for call in retry}
        self._lost_with([call for call in self.book.sent_to(str(peer)) if call.id not in not_sent], peer, because)
        if not self._membership.view.is_alive(peer):
            self._cache.forget_silo(peer)  # its row may have vanished: then nobody will ever declare it dead
        for call in retry:
            self._not_reached(call, peer, NotExecuted(f"{call.grain}: {peer} could not be reached: {because}"))
        self._avoid(self._going - {peer})
        self._hand_back(unsent, unknown, because)

    def _lost_with(self, calls: Iterable[Call], peer: SiloAddress, because: str) -> None:
        """These were sent to a silo that is lost, which may have been sending them on."""
        for call in calls:
            if call.is_control:
                self.book.unknown(call, str(peer), because)
        self._claims.find([call for call in calls if not call.answered], peer, because)

    def _own_calls(self, frames: Iterable[Frame]) -> Iterator[Call]:
        for frame in frames:
            if (
                isinstance(frame, Request)
                and frame.reply_to == self.me
                and (call := self.book.get(frame.id)) is not None
            ):
                yield call

    def _hand_back(self, unsent: Iterable[Frame], unknown: Iterable[Frame], because: str) -> None:
        """Calls of other silos that were being forwarded: try those again that never left, tell of the others."""
        for frame in unknown:
            if isinstance(frame, Request) and frame.reply_to is not None and frame.reply_to != self.me:
                self._tell(frame.reply_to, self.book.unknown_reply(frame, because))
        for frame in unsent:
            if isinstance(frame, Request) and frame.reply_to not in (None, self.me):
                frame.flags &= ~(Flag.PLACED | Flag.FORWARDED)
                self.on_request(frame)

    def on_going(self, peer: SiloAddress) -> None:
        """The peer hosts nothing any more and will leave: send it no new calls."""
        self._avoid(self._going | {peer})
        self._cache.forget_silo(peer)
        self._unreached.release(peer)
        self._placings.forget_silo(peer)

    def on_dead(self, dead: frozenset[SiloAddress]) -> None:
        """A new view says which silos are dead: from now on nothing goes there, and nothing that they say counts."""
        self.dead = dead
        self._avoid(self._going)

    def _avoid(self, going: frozenset[SiloAddress]) -> None:
        self._going = going
        self._avoided = self.dead | going | {self.me}

    def on_chance(self, why: Chance) -> None:
        """What had no place may have one now."""
        self._resolver.on_chance(why)

    def is_going(self, silo: SiloAddress) -> bool:
        """Whether it has said that it will leave, while the view may still call it active."""
        return silo in self._going

    def on_view(self, view: View) -> None:
        self._avoid(frozenset(silo for silo in self._going if view.is_alive(silo)))
        uncordoned = any(view.takes_placements(silo) for silo in self._cordoned)
        self._cordoned = frozenset(row.silo for row in view.active() if row.cordoned)
        self._resolver.on_chance(Chance.UNCORDONED if uncordoned else Chance.MEMBERS_CHANGED)
        newly, self._given_up = view.dead - self._given_up, view.dead
        if newly:
            self.forwarded.forget(view.dead)
            for call in self.book.forwarded_by(newly):
                self._ask_for(call)
            self._comebacks.hasten()
        self._unreached.release_all_but(self._is_to_be_reached)

    def _ask_for(self, call: Call) -> None:
        """Whoever said that it sent the call on is dead: ask for it where it was to go."""
        forwarder, call.forwarder = call.forwarder, None
        if call.target not in (None, HERE):
            assert forwarder is not None
            self._claims.ask(call, SiloAddress.parse(call.target), forwarder, "it was declared dead")

    def _recall(self, call: Call) -> bool:
        """The caller gives the call up. True if it had not started anywhere, and now never will."""
        if call.target is None:
            self.book.lanes.drop(call)
            return True
        if call.target == HERE:
            return self._withdraw_here(call)
        link = self._links.get(call.target)
        if link is None:
            return False
        if link.withdraw(call.outgoing):
            return True
        link.send(Cancel(call.id, call.grain, self.me))
        return False

    def _withdraw_here(self, call: Call) -> bool:
        call.cancelled = True
        activation = self._catalog.get(call.grain)
        if activation is not None:
            return activation.cancel(call)
        return call.task is None


def kind_unknown(grain: GrainId, silo: SiloAddress) -> GrainKindUnknown:
    return GrainKindUnknown(
        f"{silo} does not host grains of kind {grain.kind!r}; run a silo with the module that defines it"
    )
