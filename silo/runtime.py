"""One incarnation of a silo: its parts, wired, from the moment it binds until it has left the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from silo.activation.activation import Activation, ActivationLimits, Premises
from silo.activation.catalog import Catalog, CollectionLimits
from silo.activation.intake import IntakeLimits
from silo.caller import Caller, call_ids
from silo.chronicle import Chronicle
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.errors import (
    Closed,
    EndpointUnusable,
    HandshakeRefused,
    MembershipUnavailable,
    SiloError,
    SiloFenced,
)
from silo.directory.lives import Lives
from silo.directory.membership import SiloInfo, SiloRow, SiloStatus, TurnRight, View
from silo.directory.registrar import Registrar
from silo.endpoints import endpoint_of, split_endpoint
from silo.gateway import Gateway
from silo.grain_desk import GrainDesk
from silo.grain_records import DeactivationReport, GrainReport
from silo.kinds import KindRegistry, OnBusy, require_on_busy
from silo.leaving import LEAVE_BEHIND_AT, move_everything, say_last_words, while_leased
from silo.loads import Loads
from silo.logs import get_logger
from silo.management_values import SiloReport
from silo.messaging.direct_lane import DirectLane, LocalWays
from silo.messaging.greeting import DIRECT, FEATURES, Credentials, Identity, RefusalCode
from silo.messaging.link import Link
from silo.messaging.links import Links
from silo.messaging.permissions import Role
from silo.messaging.transport import Connection, Listener
from silo.migration.lifecycle import DeactivationReason
from silo.migration.outcome import MigrationOutcome
from silo.moving.moves import Moves
from silo.moving.parts import MIGRATE, MOVE_ANSWER_S, MoveLimits, MoveOrder, MoveParts
from silo.persistence.contract import GrainStorage
from silo.persistence.grain_states import StorageParts
from silo.placement.decision import Placement
from silo.reassertion import Reassertion
from silo.reference import Reference, grain_id, reference_binder
from silo.reporting import Reporter
from silo.routing.at_once import AtOnce
from silo.routing.book import CallBook
from silo.routing.limits import VERDICT_GRACE_S, RoutingLimits
from silo.routing.router import Router
from silo.routing.seeking import Seeking
from silo.routing.waking import Chance
from silo.serialization.registry import TypeRegistry
from silo.serialization.serializer import Serializer
from silo.settings import SiloSettings
from silo.sweeper import Sweeper
from silo.tasks import Tasks
from silo.wire.frames import Cancel, Frame, GoAway, Load, Reply, Request, Seek, SeekAnswer, Unsettled

if TYPE_CHECKING:
    import grpc.aio

    from silo.management_service import ManagementService
    from silo.surroundings import Surroundings
    from silo.telemetry import Telemetry

log = get_logger(__name__)

LINKS_GRACE_S = 1.0
"""How long a leaving silo's last frames may take to be acknowledged."""
LISTENER_GRACE_S = 0.5
"""How long streams that are still open may take to end."""
CHANCE_BITS = 128
"""Of the seed of a silo's own source of chance: activation ids come from it, and no two silos may share it."""
LIFE_BITS = 64
"""Of chance in the name of a life of a bucket of the directory."""
ETAG_BITS = 96
"""Of chance in the etag of a stored value: no two writes ever get the same."""
MEET_TIMEOUT_S = 0.5
"""How long a silo waits, before it serves, for a member to greet it."""
STRANGERS = (RefusalCode.TOKEN, RefusalCode.CLUSTER, RefusalCode.PROTOCOL)
"""Refusals that no other member would take back."""


class Runtime:
    """The wired parts. It routes events between them, and decides nothing about calls, grains or members itself."""

    def __init__(
        self,
        settings: SiloSettings,
        surroundings: Surroundings,
        kinds: KindRegistry,
        registry: TypeRegistry,
        telemetry: Callable[[SiloAddress, str], Telemetry | None],
        begin_drain: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.kinds = kinds
        self._surroundings = surroundings
        self._registry = registry
        self._telemetry_at = telemetry
        self._telemetry: Telemetry | None = None
        self._management: ManagementService | None = None
        token = settings.cluster_token
        self._credentials = Credentials(token.get_secret_value()) if token is not None else None
        self.begin_drain = begin_drain
        self._tasks = Tasks("silo")
        self._behind = asyncio.Event()
        self._subscriptions: list[Callable[[], None]] = []
        self._met = asyncio.Event()
        """Set whenever a link has been greeted or has ended."""
        self.bound = ""

    # ------------------------------------------------------------------------------------------------------------ start

    async def start(self, listen: str, *, bootstrap: bool = False) -> None:
        """Bind first, join then, serve last; what fails undoes what was done.

        Args:
            bootstrap: whether, where the store has no cluster table, this is the first silo of a new cluster.
        """
        self._transport = self._surroundings.open_transport([self._add_management])
        self._accepting: asyncio.Future[Links] = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._transport.close)
            self._listener: Listener = await self._transport.listen(listen, self._accept)
            undo.push_async_callback(self._listener.close, 0.0)
            undo.callback(self._accepting.cancel)
            self.bound = self._listener.endpoint
            self._lane = await self._open_lane(listen, undo)
            self.me = SiloAddress(self._advertised(), self._surroundings.new_incarnation())
            self.name = self.settings.name or self.me.endpoint
            self._telemetry = self._telemetry_at(self.me, self.name)
            self.membership = self._surroundings.open_membership()
            undo.push_async_callback(self.membership.close)
            self._storage = await self._open_storage(undo)
            self.directory = self._surroundings.open_directory()
            if self._telemetry is not None:
                self.directory = self._telemetry.observed(self.directory)
            undo.push_async_callback(self.directory.close)
            await self.directory.open()
            await self.membership.join(self.me, self._info(), bootstrap=bootstrap)
            undo.push_async_callback(self._goodbye)
            self._build()
            undo.push_async_callback(self._dismantle)
            self._accepting.set_result(self.links)
            self._subscriptions.append(self.membership.subscribe(self._on_view))
            self._on_view(self.membership.view)
            self._tasks.spawn(self.reassertion.run(), "say what is served here")
            await self._meet_the_others()
            await self.membership.advance(SiloStatus.ACTIVE)
            if self._management is not None:
                await self._management.announce(serving=True)
            self._tasks.spawn(self._keep_up(), "keep up with the view")
            self._tasks.spawn(self.reporter.run(), "report load")
            self._tasks.spawn(self.sweeper.run(), "sweep")
            undo.pop_all()
        log.info("silo.ready", silo=str(self.me), name=self.name, kinds=",".join(self.kinds.names))

    async def _open_lane(self, listen: str, undo: contextlib.AsyncExitStack) -> DirectLane | None:
        """The direct lane, listening and able to dial; None, and no port, where silos are to talk by gRPC alone."""
        if self._surroundings.open_direct is None or not self.settings.direct:
            return None
        transport = self._surroundings.open_direct()
        undo.push_async_callback(transport.close)
        settings = self.settings
        host, _ = split_endpoint(listen)
        listener = await transport.listen(endpoint_of(host, settings.direct_port), self._accept)
        undo.push_async_callback(listener.close, 0.0)
        self._direct_listeners = [listener]
        _, bound = split_endpoint(listener.endpoint)
        if settings.direct_advertise is not None:
            host, port = split_endpoint(settings.direct_advertise)
        else:
            (host, _), port = split_endpoint(settings.advertise or settings.listen), 0
        lane = DirectLane(transport, endpoint_of(host, port or bound))
        if self._surroundings.open_local is not None and settings.direct_local:
            await self._open_local(lane, self._surroundings.open_local(), undo)
        return lane

    async def _open_local(self, lane: DirectLane, transport: LocalWays, undo: contextlib.AsyncExitStack) -> None:
        """Give the lane its way within this host, which is a gain and no need: without it there is TCP."""
        undo.push_async_callback(transport.close)
        try:
            listener = await transport.listen("", self._accept)
        except EndpointUnusable as error:
            log.warning("silo.no_local_lane", why=str(error))
            return
        undo.push_async_callback(listener.close, 0.0)
        self._direct_listeners.append(listener)
        lane.local, lane.local_endpoint = transport, listener.endpoint

    async def _open_storage(self, undo: contextlib.AsyncExitStack) -> GrainStorage | None:
        """Where persistent state is kept; None, and no connection, where no kind here has any."""
        if not any(kind.persistent for kind in self.kinds):
            return None
        assert self._surroundings.open_storage is not None  # the host has seen to it
        storage = self._surroundings.open_storage()
        if self._telemetry is not None:
            storage = self._telemetry.observed_storage(storage)
        undo.push_async_callback(storage.close)
        await storage.open()
        return storage

    async def _meet_the_others(self) -> None:
        """Be greeted by a member before serving: a silo that they refuse would get grains, and nobody could call them.

        Where nobody answers, all of them may be dead; that is judged elsewhere.

        Raises:
            HandshakeRefused: this silo and the members do not agree on token, cluster or protocol.
        """
        links = [self.links.to(row.silo) for row in self.membership.view.others(self.me)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEET_TIMEOUT_S):
                while links and not any(link.attached for link in links):
                    for link in links:
                        if link.ending is not None and link.ending.code in STRANGERS:
                            raise HandshakeRefused(
                                f"{self.name} cannot join: {link.peer.name} said: {link.ending.text}"
                            )
                    self._met.clear()
                    await self._met.wait()

    def _advertised(self) -> str:
        host, port = split_endpoint(self.settings.advertise or self.settings.listen)
        if port == 0:
            port = split_endpoint(self.bound)[1]
        return endpoint_of(host, port)

    def _info(self) -> SiloInfo:
        settings = self.settings
        return SiloInfo(
            self.name,
            self.kinds.names,
            dict(settings.meta),
            settings.gateway,
            settings.app_version,
            self._surroundings.process,
        )

    def _build(self) -> None:
        settings, surroundings = self.settings, self._surroundings
        rng = surroundings.rng
        chance = random.Random(rng.getrandbits(CHANCE_BITS))  # for what is drawn often and is no secret
        right = self.membership.right
        self.codec = Serializer(
            self._registry,
            allow_cloudpickle=settings.cloudpickle,
            reference_type=Reference,
            bind_reference=self._bind_reference,
            reference_id=grain_id,
        )
        features = FEATURES if self._lane is None else (*FEATURES, DIRECT)
        self.links = Links(
            self._transport,
            Identity(str(self.me), Role.SILO, settings.cluster, self.me, settings.app_version, features),
            self._credentials,
            self,
            limits=settings.link,
            rng=rng,
            view_version=lambda: self.membership.view.version,
            lane=self._lane,
        )
        self.lives = Lives()
        self.registrar = Registrar(self.directory, self.lives)
        self.chronicle = Chronicle()
        self.cache = DirectoryCache()
        activation = settings.activation
        intake = IntakeLimits(activation.activations_in_flight_max, activation.warm_up_s, activation.activations_max)
        self.loads = Loads(
            self.me,
            chance,
            lambda: self.membership.view,
            self._own_load,
            in_flight_max_unheard=intake.cap_at(0.0),  # one that has said nothing has just come
            on_room=self._on_room,
        )
        self.placement = Placement(
            local=self.me,
            rng=chance,
            policy=settings.placement.policy,
            type_policies=settings.placement.type_policies,
            force_policies=settings.placement.force_policies,
            declared={kind.name: kind.placement for kind in self.kinds},
            is_eligible=self._why_ineligible,
            is_preferred=self.loads.why_lagging,
            is_free=self.loads.why_busy,
            on_chosen=self.loads.chosen,
        )
        self.catalog = Catalog(
            self.me,
            self.kinds,
            self.registrar,
            self.cache,
            chance,
            CollectionLimits(activation.collect_after_s, activation.collect_every_s, activation.collect_in_flight_max),
            intake,
            lambda: self.reporter.capacity_changed(),
            self.lives,
        )
        self.seeking = Seeking(self.me, self.catalog, self.membership, self.links)
        self.reassertion = Reassertion(
            self.me,
            directory=self.directory,
            registrar=self.registrar,
            lives=self.lives,
            membership=self.membership,
            catalog=self.catalog,
            cache=self.cache,
            links=self.links,
            new_life=lambda: f"{rng.getrandbits(LIFE_BITS):016x}",
            earlier_within_s=settings.lease.wait_alone_s,
        )
        moving = settings.migration
        self.moves = Moves(
            MoveParts(
                self.me,
                self.name,
                settings.app_version,
                self.catalog,
                self.cache,
                self.links,
                self.membership,
                self.placement,
                self.codec,
                MoveLimits(
                    moving.drain_timeout_s,
                    moving.ask_timeout_s,
                    moving.offer_timeout_s,
                    moving.payload_bytes_max,
                    moving.moves_in_flight_max,
                    moving.arrivals_in_flight_max,
                    moving.notice_timeout_s,
                ),
                surroundings.stopwatch,
                self._telemetry,
            )
        )
        queues = settings.queues
        self.book = CallBook(
            self.codec,
            calls_max=queues.silo_queue_calls_max,
            bytes_max=queues.silo_queue_bytes_max,
            limit_names=("silo_queue_calls_max", "silo_queue_bytes_max"),
            lane_calls_max=queues.queue_calls_max,
            large_bytes=settings.link.chunk_bytes,
            answer_grace_s=VERDICT_GRACE_S,
            recalls_first=True,
        )
        self.router = Router(
            self.me,
            codec=self.codec,
            links=self.links,
            catalog=self.catalog,
            registrar=self.registrar,
            cache=self.cache,
            membership=self.membership,
            placement=self.placement,
            chronicle=self.chronicle,
            control=self.moves,
            limits=RoutingLimits(
                settings.calls.hops_max,
                resolving_calls_max=queues.queue_calls_max,
                resolving_bytes_max=queues.queue_bytes_max,
                arrived_calls_max=queues.silo_queue_calls_max,
                arrived_bytes_max=queues.silo_queue_bytes_max,
                retry_pause_first_s=settings.calls.retry_pause_first_s,
                retry_pause_last_s=settings.calls.retry_pause_last_s,
            ),
            book=self.book,
            rng=rng,
            loads=self.loads,
            lives=self.lives,
            seek=self.seeking.seek,
            telemetry=self._telemetry,
        )
        ids = call_ids(rng)
        self.caller = Caller(
            str(self.me),
            self.book,
            ids,
            call_timeout_s=settings.calls.call_timeout_s,
            right=right,
            telemetry=self._telemetry,
            move=self.migrate,
        )
        self._bind = reference_binder(self.kinds, self.caller)
        self.gateway = Gateway(self.book, ids, self.links, self.codec, self.cache)
        self.storage = self._storage_parts(right)
        premises = Premises(
            self.codec,
            right,
            ActivationLimits(
                queues.queue_calls_max,
                queues.queue_bytes_max,
                activation.activation_timeout_s,
                activation.deactivation_timeout_s,
                activation.activate_tries_max,
            ),
            self.name,
            self.router.route_all,
            self.router.on_forwarded_start,
            self.caller.reference,
            self.moves.begin,
            lambda activation: self.catalog.begin_deactivation(activation, _wish(activation)),
            self._telemetry,
            self.storage,
            new_call_id=ids,
            chronicle=self.chronicle,
            forwarded=self.router.forwarded,
            hasten=self.catalog.places.hasten,
            lend_place=self.catalog.places.lend,
            take_place_back=self.catalog.places.take_back,
        )
        self.catalog.open(premises)
        if self._telemetry is None:
            at_once = AtOnce(
                premises,
                self.catalog,
                self.book,
                name=self.caller.name,
                call_timeout_s=settings.calls.call_timeout_s,
                sought=self.router.sought,
            )
            self.caller.run_at_once(at_once.call)
        self.placement.attach(self.loads)
        self.sweeper = Sweeper(self.me, self.directory, self.registrar, self.membership)
        self.reporter = Reporter(
            self.me,
            settings.cluster,
            membership=self.membership,
            loads=self.loads,
            links=self.links,
            catalog=self.catalog,
            moves=self.moves,
            book=self.book,
            router=self.router,
            telemetry=self._telemetry,
            on_room=self._on_room,
        )
        self.grain_desk = GrainDesk(self.me, self.catalog, self.router, self.registrar, self.membership, self.chronicle)

    def _storage_parts(self, right: TurnRight) -> StorageParts | None:
        if self._storage is None:
            return None
        plain = Serializer(
            self._registry, reference_type=Reference, bind_reference=self._bind_reference, reference_id=grain_id
        )
        rng = self._surroundings.rng
        return StorageParts(
            self._storage,
            plain,
            right,
            self.settings.activation.state_bytes_max,
            lambda: f"{rng.getrandbits(ETAG_BITS):024x}",
        )

    def _why_ineligible(self, row: SiloRow) -> str | None:
        """R-120: a silo whose renewals are late receives nothing, long before anybody calls it dead."""
        if self.router.is_going(row.silo):
            return "it is leaving"
        if row.silo == self.me:
            return self.catalog.why_full() or None
        silence_s = self.membership.silence_s(row.silo)
        if silence_s > self.settings.lease.eligible_within_s:
            return f"it has not renewed its lease for {silence_s:.1f} s"
        return self.loads.why_full(row)

    def _own_load(self) -> Load:
        catalog = self.catalog
        return Load(
            len(catalog),
            in_flight=catalog.places.in_flight + self.moves.arriving_count,
            in_flight_max=catalog.places.in_flight_max(),
            activations_max=catalog.activations_max or 0,
        )

    def _on_room(self) -> None:
        self.router.on_chance(Chance.FREED)

    def _bind_reference(self, grain: GrainId) -> object:
        return self._bind(grain)

    async def _accept(self, connection: Connection) -> None:
        links = await asyncio.shield(self._accepting)
        await links.accept(connection)

    # ----------------------------------------------------------------------------------------------------------- events

    def _on_view(self, view: View) -> None:
        self.router.on_dead(view.dead)
        self.moves.on_view(view)  # that a peer is dead says more than that its link is lost
        for row in view.table.rows:
            if row.silo == self.me:
                continue
            if row.status is SiloStatus.DEAD:
                self.cache.forget_silo(row.silo)
                self.links.end(row.silo, f"{row.info.name} was declared dead")
                self.loads.forget(row.silo)
            else:
                self.links.to(row.silo)
        self.router.on_view(view)
        self.reassertion.on_view(view)
        self.gateway.on_view(view)
        self.sweeper.on_view(view)

    def on_attached(self, link: Link) -> None:
        self._met.set()
        if link.peer.role is not Role.SILO:
            self.gateway.on_attached(link)
        elif link.peer.silo is not None:
            link.send(self.loads.own_report())  # it need not wait a period to know what this silo can take
            self.router.on_reached(link.peer.silo)

    def on_detached(self, link: Link) -> None:
        """Its session may be resumed. The view is read anew: the sooner a silence is noted, the better."""
        if link.peer.role is Role.SILO:
            self._behind.set()

    def on_frame(self, link: Link, frame: Frame) -> None:
        peer = link.peer.silo
        if peer is None:
            self._on_client_frame(link, frame)
        elif peer not in self.router.dead:  # what a dead incarnation still says takes no effect
            if type(frame) is Request:  # nearly all are of these two
                self.router.on_request(frame)
            elif type(frame) is Reply:
                self.router.on_reply(frame)
            elif isinstance(frame, Load):
                self.loads.report(peer, frame)
            elif isinstance(frame, GoAway):
                self.router.on_going(peer)
            elif isinstance(frame, Seek | SeekAnswer):
                self.seeking.on_frame(peer, frame)
            elif isinstance(frame, Unsettled):
                self.reassertion.on_frame(frame)
            elif not self.moves.on_frame(peer, frame):
                self.router.on_frame(peer, frame)

    def _on_client_frame(self, link: Link, frame: Frame) -> None:
        match frame:
            case Request():
                self.gateway.on_request(link, frame)
            case Cancel():
                self.gateway.on_cancel(link, frame)
            case _:
                log.warning("gateway.frame_ignored", frame=type(frame).__name__, client=link.peer.name)

    def on_lost(self, link: Link, unsent: list[Frame], unknown: list[Frame], because: str) -> None:
        self._met.set()
        peer = link.peer.silo
        if peer is None:
            self.gateway.on_lost(link)
        else:
            self.moves.on_lost(peer, [*unknown, *unsent], because)
            self.router.on_lost(peer, unsent, unknown, because)

    def on_peer_view(self, link: Link, version: int) -> None:
        if version > self.membership.view.version:
            self._behind.set()

    async def _keep_up(self) -> None:
        """Read the view anew whenever something says that it has changed."""
        while True:
            await self._behind.wait()
            self._behind.clear()
            try:
                await self.membership.refresh()
            except (MembershipUnavailable, SiloFenced) as error:
                log.debug("membership.refresh_failed", why=str(error))

    # ------------------------------------------------------------------------------------------------------- management

    def _add_management(self, server: grpc.aio.Server) -> None:
        from silo.management_service import ManagementService  # grpc is loaded only where it is used

        self._management = ManagementService(self, self._credentials, self._surroundings.rng)
        self._management.add_to(server)
        self._tasks.spawn(self._management.announce(serving=False), "announce that it does not serve yet")

    def answers_to(self, silo: str) -> bool:
        """Whether this silo is meant by a name, endpoint or address."""
        return silo in (self.name, self.me.endpoint, str(self.me))

    async def cordon(self, cordoned: bool) -> None:
        """Take no new placements, or take them again. It serves what it has, and moves to it are refused."""
        await self.membership.cordon(cordoned)

    async def grain_report(self, grain: GrainId, *, look_up: bool) -> GrainReport:
        """What this silo knows of a grain.

        Args:
            look_up: whether to ask the directory, too.
        """
        return await self.grain_desk.report(grain, look_up=look_up)

    async def deactivate(self, grain: GrainId, within_s: float) -> DeactivationReport:
        """End the activation of a grain here, whatever it does, and forget its troubles; wait for that for so long."""
        return await self.grain_desk.deactivate(grain, within_s)

    async def report(self) -> SiloReport:
        """What this silo says of itself and of the cluster."""
        return await self.reporter.report()

    # ------------------------------------------------------------------------------------------------------------ moves

    async def migrate(
        self, grain: GrainId, to: str | SiloAddress | None, reason: str, force: bool, on_busy: OnBusy | None
    ) -> MigrationOutcome:
        """Move a grain, wherever it is active."""
        require_on_busy(on_busy)
        order = msgspec.msgpack.encode(MoveOrder("" if to is None else str(to), reason, force, on_busy or ""))
        moving = self.settings.migration
        timeout_s = moving.drain_timeout_s + moving.ask_timeout_s + moving.offer_timeout_s + MOVE_ANSWER_S
        answer = await self.caller.control(grain, MIGRATE, order, timeout_s)
        return msgspec.msgpack.decode(answer, type=MigrationOutcome)

    # -------------------------------------------------------------------------------------------------------------- end

    async def declared_dead(self) -> None:
        await self.membership.declared_dead()

    async def drain_and_stop(self, timeout_s: float) -> None:
        """Leave in order: publish it, move every grain, answer everything, say goodbye; only then stop listening.

        What needs Redis is given up once the lease has run out: without it no grain moves, and no row is given up.
        """
        leave_by = asyncio.get_running_loop().time() + timeout_s * LEAVE_BEHIND_AT
        try:
            async with asyncio.timeout(timeout_s):
                await while_leased(self._leave(leave_by), self.membership.right, self.settings.lease.return_within_s)
        except TimeoutError:
            log.warning("silo.drain_unfinished", activations=len(self.catalog), calls=len(self.book))
        except SiloError as error:
            left = {"activations": len(self.catalog), "calls": len(self.book)}
            log.warning("silo.drain_failed", why=str(error), **left)
        finally:  # whatever befell the drain: nothing is left listening
            self.book.fail_all(Closed(f"{self.name} had to stop before the call was answered"))
            await self._close(goodbye=True)

    async def _leave(self, leave_by: float) -> None:
        await self._stop_serving()
        await self.membership.advance(SiloStatus.LEAVING)
        self.gateway.go_away()
        await move_everything(self.catalog, self.moves, leave_by)
        await self.reassertion.finish()
        await say_last_words(self.links, self.book, self.router)

    async def _stop_serving(self) -> None:
        if self._management is not None:
            await self._management.announce(serving=False)

    async def _goodbye(self) -> None:
        lease = self.settings.lease
        within_s = lease.lease_s if self.membership.right.is_leased() else lease.ask_timeout_s
        try:
            async with asyncio.timeout(within_s):
                await self.membership.goodbye()
        except (SiloError, TimeoutError) as error:
            why = str(error) or f"the membership table did not answer within {within_s} s"
            log.warning("silo.goodbye_failed", why=why, until="the others find its lease run out")

    async def abandon(self) -> None:
        """Declared dead: give up everything at once, without writing."""
        self.catalog.abandon_all()
        self.book.fail_all(Closed(f"{self.name} was declared dead"))
        await self._stop_serving()
        await self._close(goodbye=False)

    async def _close(self, *, goodbye: bool) -> None:
        self.caller.closed = f"{self.name} has stopped"
        for end in self._subscriptions:
            end()
        await self._tasks.close()
        await self.moves.close()
        await self.router.close()
        if goodbye:
            await self._goodbye()
        await self.links.close(LINKS_GRACE_S if goodbye else 0.0)
        await self._dismantle()
        await self.directory.close()
        await self.membership.close()
        grace_s = LISTENER_GRACE_S if goodbye else 0.0
        await self._listener.close(grace_s)
        if self._lane is not None:
            for listener in self._direct_listeners:
                await listener.close(grace_s)
            for transport in (self._lane.local, self._lane.transport):
                if transport is not None:
                    await transport.close()
        await self._transport.close()
        log.info("silo.stopped", silo=str(self.me))

    async def _dismantle(self) -> None:
        await self._tasks.close()
        await self.moves.close()
        await self.router.close()
        await self.links.close(0.0)
        self.reporter.close()
        await self.catalog.close()
        if self.storage is not None:
            await self.storage.close()
        self.placement.close()
        await self.registrar.close()


def _wish(activation: Activation) -> DeactivationReason:
    """Why an activation is to end."""
    stale = activation.states is not None and activation.states.stale
    return DeactivationReason.STALE_STATE if stale else activation.wants_deactivation or DeactivationReason.APPLICATION
