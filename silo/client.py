"""The client: calls grains from outside of the cluster, through whichever silos are its gateways."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from silo.caller import Caller, call_ids
from silo.directory.addresses import CLUSTER_PATTERN, GrainId, SiloAddress
from silo.directory.errors import (
    Closed,
    HandshakeRefused,
    InvalidSettings,
    NoGateway,
    NotExecuted,
    OutcomeUnknown,
    PermissionRefused,
    SiloError,
)
from silo.directory.membership import View
from silo.gateway_choice import GatewayChoice
from silo.gateways import GatewaySource, ListedGateways, RedisGateways
from silo.home import Home
from silo.kinds import GrainKind, KindRegistry, OnBusy, collect_kinds, kind_of, require_on_busy
from silo.logs import get_logger
from silo.messaging.certificates import Certificates
from silo.messaging.greeting import FEATURES, Credentials, Identity, RefusalCode
from silo.messaging.limits import MIB, ORDERS_MAX, LinkLimits
from silo.messaging.link import Link
from silo.messaging.links import Links
from silo.messaging.permissions import Role
from silo.messaging.transport import Transport
from silo.messaging.transports import open_grpc
from silo.migration.outcome import MigrationOutcome, MoveReason, MoveStatus
from silo.moving.parts import MIGRATE, MoveOrder
from silo.reference import Reference, grain_id, reference_binder
from silo.routing.book import CallBook
from silo.routing.call import Answer, Call
from silo.routing.limits import VERDICT_GRACE_S
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.serialization.serializer import Serializer
from silo.tasks import Tasks
from silo.wire.frames import OUTCOMES, VALUE, Cancel, Frame, Gateways, GoAway, Outcome, Reply, Request

if TYPE_CHECKING:
    from silo.management import Management
    from silo.telemetry import Telemetry

log = get_logger(__name__)

G = TypeVar("G")
CALLS_MAX = 100_000
"""Calls of one client that may be open at once."""
CALLS_BYTES_MAX = 512 * MIB
"""Bytes of the calls of one client that may be open at once."""
LANE_CALLS_MAX = 10_000
"""Calls of one client to one grain that may be held back to keep their order."""
ANSWER_GRACE_S = 2 * VERDICT_GRACE_S
"""How long past its deadline a call waits for the gateway to say why: what it waited for, or that it has not run.

The gateway may have to ask another silo."""
CLOSE_GRACE_S = 1.0
"""How long closing waits for what is on its way."""
MOVES_IN_FLIGHT_MAX = ORDERS_MAX
"""Moves that one `migrate_many` has under way at a time, which leave as one order for each gateway."""
MOVE_TIMEOUT_S = 120.0
"""How long a move may take, its grain's running calls included."""
MOVE_OF_MANY_TIMEOUT_S = 10 * MOVE_TIMEOUT_S
"""How long it may take among others: so many may have been ordered that its silo gets to it in the tenth round."""


class Client:
    """Calls grains, and moves them.

    ```python
    async with Client.connect("redis://localhost:6379", cluster="prod") as client:
        lobby = client.grain(Room, "lobby")
        await lobby.enter("ada")
    ```
    It may be started before any silo is: calls wait for a gateway within their own deadline. Make one with `connect`.
    """

    def __init__(
        self,
        source: GatewaySource,
        *,
        cluster: str,
        credentials: Credentials | None,
        certificates: Certificates | None,
        role: Role,
        name: str,
        call_timeout_s: float,
        registry: TypeRegistry,
        transport: Transport,
        rng: random.Random,
        limits: LinkLimits,
        telemetry: Telemetry | None,
        as_admin: Callable[[], Client] | None,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self._source = source
        self._transport = transport
        self._kinds = KindRegistry()
        self._registry = registry
        self._as_admin = as_admin
        self._telemetry = telemetry
        self._credentials = credentials
        self._certificates = certificates
        self._admin: Client | None = None
        self._home = Home(name)
        self._codec = Serializer(
            registry,
            reference_type=Reference,
            bind_reference=self._bind_reference,
            reference_id=grain_id,
        )
        self._links = Links(
            transport,
            Identity(name, role, cluster, features=FEATURES),
            credentials,
            self,
            limits=limits,
            rng=rng,
            view_version=lambda: self._choice.version,
        )
        self._book = CallBook(
            self._codec,
            calls_max=CALLS_MAX,
            bytes_max=CALLS_BYTES_MAX,
            lane_calls_max=LANE_CALLS_MAX,
            large_bytes=limits.chunk_bytes,
            answer_grace_s=ANSWER_GRACE_S,
        )
        self._book.attach(self._route, self._recall)
        self._caller = Caller(
            name,
            self._book,
            call_ids(rng),
            call_timeout_s=call_timeout_s,
            right=None,
            telemetry=telemetry,
            move=self._move,
            home=self._home,
        )
        self._bind = reference_binder(self._kinds, self._caller)
        self._choice = GatewayChoice(self._links)
        self._waiting: list[Call] = []
        self._trouble = ""
        self._refused = False
        """Whether that trouble is that a silo will have nothing to do with this client."""
        self._tasks = Tasks(f"client {name}")
        self._caller.closed = "this client was not opened: use `async with Client.connect(...) as client`"

    def _bind_reference(self, grain: GrainId) -> object:
        return self._bind(grain)

    @classmethod
    def connect(
        cls,
        redis: str | None = None,
        *,
        cluster: str = "default",
        gateways: Sequence[str] = (),
        token: str | None = None,
        certificates: Certificates | None = None,
        role: str = Role.CLIENT,
        name: str | None = None,
        call_timeout_s: float = 30.0,
        registry: TypeRegistry = DEFAULT_REGISTRY,
        transport: Transport | None = None,
        source: GatewaySource | None = None,
        rng: random.Random | None = None,
        limits: LinkLimits | None = None,
        telemetry: Telemetry | None = None,
    ) -> Client:
        """A client of the cluster, to be used with `async with`.

        Args:
            redis: the URL where the cluster's members are listed; only read.
            gateways: instead of it, endpoints (`host:port`) of one or more silos; they tell of the others.
            token: the cluster token, or one made for this role.
            certificates: for a cluster that talks under TLS: what this client proves itself by, and whom it believes.
            role: `client` calls grains; `admin` may do what `silo.management` offers, too.
            name: who this is in logs; unlike any other client's.
            call_timeout_s: the deadline of calls that state none.
            telemetry: produces spans and metrics of the calls, such as `silo.telemetry.Telemetry()` does.

        Raises:
            InvalidSettings: neither or both of `redis` and `gateways`, a cluster name that is none, or certificates
                that cannot be used.
        """
        if not CLUSTER_PATTERN.fullmatch(cluster):
            raise InvalidSettings(f"{cluster!r} is not a cluster name: lower-case letters, digits and hyphens only")
        if source is None:
            if (redis is None) == (not gateways):
                raise InvalidSettings(
                    "a client is told either the Redis URL of the cluster, or gateways=[host:port, …]"
                )
            source = RedisGateways(redis, cluster) if redis is not None else ListedGateways(gateways)
        random_source = rng or random.SystemRandom()
        unique = uuid.UUID(int=random_source.getrandbits(128), version=4).hex[:12]
        own_name = f"{name or 'client'}-{unique}"

        def make(as_role: Role, its_name: str, as_admin: Callable[[], Client] | None) -> Client:
            return cls(
                source,
                cluster=cluster,
                credentials=Credentials(token) if token is not None else None,
                certificates=certificates,
                role=as_role,
                name=its_name,
                call_timeout_s=call_timeout_s,
                registry=registry,
                transport=transport or open_grpc(certificates=certificates),
                rng=random_source,
                limits=limits or LinkLimits(),
                telemetry=telemetry,
                as_admin=as_admin,
            )

        if role not in (Role.CLIENT, Role.ADMIN):
            raise InvalidSettings(f"{role!r} is no role of a client: write client or admin")
        if Role(role) is Role.ADMIN:
            return make(Role.ADMIN, own_name, None)
        return make(Role(role), own_name, lambda: make(Role.ADMIN, f"{own_name}-admin", None))

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin to look for gateways; does not wait for one. Raises ClientMisused where another loop has opened it."""
        self._home.settle()
        self._caller.closed = ""
        self._tasks.spawn(self._source.follow(self), "follow the gateways")

    async def close(self) -> None:
        """Let go of the cluster. Calls that are still out fail, saying so."""
        if self._caller.closed:
            return
        self._caller.closed = "this client is closed"
        if self._admin is not None:
            await self._admin.close()
        await self._tasks.close()
        self._book.fail_all(Closed("the client was closed before the call was answered"))
        await self._links.close(CLOSE_GRACE_S)
        await self._source.close()
        await self._transport.close()
        if self._telemetry is not None:
            self._telemetry.settle()

    # ----------------------------------------------------------------------------------------------------------- grains

    def register(self, *kinds: type | ModuleType) -> None:
        """Make grain kinds known, so that references to them in results have their methods, as `grain` does."""
        for each in kinds:
            for kind in collect_kinds(each) if isinstance(each, ModuleType) else [kind_of(each)]:
                self._know(kind)

    def grain(self, kind: type[G], key: str) -> G:
        """A reference to a grain, typed as its class; activates nothing. Raises InvalidIdentity or InvalidGrain."""
        self._know(kind_of(kind))
        return self._caller.reference(kind, key)

    def _know(self, kind: GrainKind) -> None:
        if self._kinds.get(kind.name) is not kind:
            self._kinds.add(kind)
            self._registry.register_annotations(kind.cls)

    async def migrate(
        self,
        grain: Any,
        *,
        to: str | SiloAddress | None = None,
        reason: str = MoveReason.ADMIN,
        force: bool = False,
        on_busy: OnBusy | None = None,
    ) -> MigrationOutcome:
        """Move a live grain to another silo; its calls go on meanwhile. Activates nothing.

        Args:
            grain: a reference or a GrainId.
            to: the name or address of a silo; without one, placement decides.
            force: move the grain even if its kind says `migratable=False`.
            on_busy: how to treat calls that run: `"wait"` for them, let the grain `"stay"`, or `"interrupt"` them; what
                its kind says if left out.

        Returns:
            What became of it: moved, or refused, aborted, not active, and why.

        Raises:
            ValueError: `on_busy` is none of the ways there are.
            NotExecuted, OutcomeUnknown: the order could not be given, or its outcome could not be heard.
            PermissionRefused: the token does not allow the role `admin`.
        """
        return await self._move(grain_id(grain), to, reason, force, on_busy)

    async def migrate_many(
        self,
        grains: Iterable[Any],
        *,
        to: str | SiloAddress | None = None,
        reason: str = MoveReason.ADMIN,
        force: bool = False,
        on_busy: OnBusy | None = None,
    ) -> list[MigrationOutcome]:
        """Move many grains, each alone, with an outcome each, in the order in which they are named; see `migrate`.

        What is ordered at one time travels as one, up to 1,000 grains, and more are ordered as moves end. Nobody waits
        for the slowest, nor for one that cannot be moved. Nothing that one of them meets is raised: an order that could
        not be given is `REFUSED`, one whose outcome could not be heard `UNKNOWN`, and `why` says the rest.
        """
        require_on_busy(on_busy)
        slots = asyncio.Semaphore(MOVES_IN_FLIGHT_MAX)

        async def move(grain: Any) -> MigrationOutcome:
            async with slots:
                try:
                    return await self._order(grain_id(grain), to, reason, force, on_busy, MOVE_OF_MANY_TIMEOUT_S)
                except (NotExecuted, OutcomeUnknown) as error:
                    status = MoveStatus.REFUSED if isinstance(error, NotExecuted) else MoveStatus.UNKNOWN
                    return MigrationOutcome(grain_id(grain), status, reason=reason, why=str(error))

        return list(await asyncio.gather(*(move(grain) for grain in grains)))

    async def _move(
        self, grain: GrainId, to: str | SiloAddress | None, reason: str, force: bool, on_busy: OnBusy | None
    ) -> MigrationOutcome:
        require_on_busy(on_busy)
        return await self._order(grain, to, reason, force, on_busy, MOVE_TIMEOUT_S)

    async def _order(
        self,
        grain: GrainId,
        to: str | SiloAddress | None,
        reason: str,
        force: bool,
        on_busy: OnBusy | None,
        timeout_s: float,
    ) -> MigrationOutcome:
        self._home.check()
        admin = await self._admin_client()
        order = msgspec.msgpack.encode(MoveOrder("" if to is None else str(to), reason, force, on_busy or ""))
        answer = await admin._caller.control(grain, MIGRATE, order, timeout_s)
        return msgspec.msgpack.decode(answer, type=MigrationOutcome)

    async def _admin_client(self) -> Client:
        """This client in the role of an administrator, which is proved apart and only where it is needed."""
        if self._as_admin is None:
            return self
        if self._caller.closed:
            raise Closed(self._caller.closed)
        if self._credentials is not None and not self._credentials.holds(Role.ADMIN):
            raise PermissionRefused(
                "this client's token is not one of an administrator; `silo token --role admin` makes one"
            )
        if self._admin is None:
            self._admin = self._as_admin()
            await self._admin.open()
            # Those that it begins with are the ones of its own beginning, all of which may have left by now.
            self._admin._on_gateways(self._choice.version, self._choice.silos, ())
        return self._admin

    @property
    def management(self) -> Management:
        """What an operator asks of the cluster."""
        from silo.management import Management

        return Management(self._reachable_endpoints, self._credentials, self._certificates)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The gateways known now."""
        return tuple(silo.endpoint for silo in self._choice.silos)

    @property
    def trouble(self) -> NotExecuted | None:
        """That no gateway can be reached, and why, as far as is known; None while one carries this client's link."""
        return None if self._choice.is_reachable else self._no_gateway()

    async def _reachable_endpoints(self, timeout_s: float) -> list[str]:
        """The gateways that carry a link; raises NoGateway or HandshakeRefused where none does in time."""
        if self._caller.closed:
            raise Closed(self._caller.closed)
        try:
            async with asyncio.timeout(timeout_s):
                await self.reachable()
        except TimeoutError:
            raise self._no_gateway() from None
        links = self._choice.candidates
        return [link.peer.silo.endpoint for link in links if link.attached and link.peer.silo is not None]

    async def reachable(self) -> None:
        """Wait until a gateway carries this client's link."""
        await self._choice.reachable()

    # --------------------------------------------------------------------------------------------------------- gateways

    def on_view(self, view: View) -> None:
        """The source read the members."""
        dead = [row.silo for row in view.table.rows if not view.is_alive(row.silo)]
        self._choice.version = 0  # the table itself: it counts, even where it was begun anew
        for row in view.living():
            self._links.revive(row.silo)  # even where it was set back to before that silo's death
        self._on_gateways(view.version, [row.silo for row in view.gateways()], dead)
        if not self._choice.silos:
            self.on_trouble(f"no silo of cluster {self.cluster!r} is active")

    async def on_endpoint(self, endpoint: str) -> bool:
        """The source knows an endpoint only: find out who is there. True if somebody is."""
        try:
            # Who answers, though it was declared dead, may live by a table that was set back since; it knows better.
            link = await self._links.dial_gateway(endpoint, even_dead=not self._choice.is_reachable)
        except HandshakeRefused as error:
            self.on_trouble(f"{endpoint} refused this client: {error}", refused=True)
            return False
        except ConnectionError as error:
            self.on_trouble(f"{endpoint} does not answer: {error}")
            return False
        if link.peer.silo is not None and self._choice.add(link.peer.silo):
            self._choose_candidates()
        return True

    def on_trouble(self, what: str, *, refused: bool = False) -> None:
        """What stands between this client and the cluster, for the errors of calls that wait."""
        log.debug("client.trouble", client=self.name, what=what)
        self._trouble, self._refused = what, refused
        for call in self._waiting:
            call.obstacle = self._no_gateway()

    def _no_gateway(self) -> NotExecuted:
        why = f": {self._trouble}" if self._trouble else ""
        kind = HandshakeRefused if self._refused else NoGateway
        return kind(f"no silo of cluster {self.cluster!r} could be reached{why}")

    def _on_gateways(self, version: int, silos: Iterable[SiloAddress], dead: Iterable[SiloAddress]) -> None:
        if self._choice.learn(version, silos, dead):
            self._choose_candidates()

    def _choose_candidates(self) -> None:
        """Find the links that new calls may take, and send on what waited for one."""
        self._choice.choose()
        if self._choice.candidates:
            waiting, self._waiting = self._waiting, []
            waiting.sort(key=lambda call: call.id)  # one that was given back may have joined after one made later
            for call in waiting:
                if not call.answered:
                    self._route(call)

    # ------------------------------------------------------------------------------------------------------------ calls

    def _route(self, call: Call) -> None:
        if not self._choice.candidates:
            call.obstacle = self._no_gateway()
            self._waiting.append(call)
            return
        link = self._choice.link_for(call, self._book.lanes)
        try:
            if not self._book.lanes.enter(call, link.peer.name, tracked=True):
                call.payload(self._codec)
                return
            call.target = link.peer.name
            request = call.as_request(self._codec, None, call.flags)
            large = len(request.payload) >= self._book.large_bytes
            call.outgoing = link.send(
                request,
                deadline=call.deadline,
                on_written=self._book.lanes.block(call) if large else None,
                force=call.tries > 0,
            )
        except SiloError as error:
            call.target = None
            call.on_answer(call, Answer.failed(error))

    def _recall(self, call: Call) -> bool:
        if call.target is None:
            self._book.lanes.drop(call)
            if call in self._waiting:
                self._waiting.remove(call)
            return True
        link = self._links.get(call.target)
        if link is None:
            return False
        if link.withdraw(call.outgoing):
            if not link.attached:  # it waited for a connection all the time: that is what its caller should hear
                call.target, call.obstacle = None, self._no_gateway()
            return True
        link.send(Cancel(call.id, call.grain))
        return False

    def _again(self, call: Call, why: NotExecuted) -> None:
        """It has not run: it goes in by another door, or waits for one until its deadline.

        However often that is: each time a gateway has left, or a connection was lost.
        """
        call.tries += 1
        call.obstacle = why
        call.target = None
        if self._telemetry is not None:
            self._telemetry.retried()
        self._book.lanes.again(call)

    # ------------------------------------------------------------------------------------------------------------ links

    def on_frame(self, link: Link, frame: Frame) -> None:
        match frame:
            case Reply():
                self._on_reply(link, frame)
            case Gateways(version=version, silos=silos, dead=dead):
                self._on_gateways(version, silos, dead)
            case GoAway():
                self._on_going(link)
            case _:
                log.warning("client.frame_ignored", frame=type(frame).__name__, silo=link.peer.name)

    def _on_going(self, link: Link) -> None:
        """The gateway is leaving the cluster, and never comes back as this incarnation."""
        if link.peer.silo is not None and self._choice.leaves(link.peer.silo):
            self._choose_candidates()

    def _on_reply(self, link: Link, reply: Reply) -> None:
        if reply.entry is not None:
            self._choice.serves(reply.entry.silo, reply.entry.grain)
        call = self._book.get(reply.id)
        if call is None:  # late: it was cancelled, or its deadline passed
            if self._telemetry is not None:
                self._telemetry.answered_late()
            return
        if reply.outcome == VALUE:
            self._book.returned(call, reply)
            return
        if reply.outcome == Outcome.MOVED:
            self._on_going(link)
            self._again(call, NotExecuted(f"{call.grain}: no gateway would take the call"))
            return
        call.on_answer(call, Answer(OUTCOMES[reply.outcome], payload=reply.payload, codec=reply.codec))

    def on_attached(self, link: Link) -> None:
        self._trouble, self._refused = "", False
        self._choose_candidates()

    def on_detached(self, link: Link) -> None:
        """What it has not written yet goes another way; what it has may have arrived."""
        if not self._choice.is_reachable:
            self.on_trouble(f"the connection to {link.peer.name} was lost")
        self._choose_candidates()
        for call in self._book.sent_to(link.peer.name):
            if link.withdraw(call.outgoing):
                self._again(call, self._no_gateway())

    def on_lost(self, link: Link, unsent: list[Frame], unknown: list[Frame], because: str) -> None:
        refusal = refusal_of(link)
        self.on_trouble(f"{link.peer.name}: {because}", refused=refusal is not None)
        self._choice.lost(link)
        retry = [
            call for frame in unsent if isinstance(frame, Request) and (call := self._book.get(frame.id)) is not None
        ]
        not_sent = {call.id for call in retry}
        for call in self._book.sent_to(link.peer.name):
            if call.id not in not_sent:
                if refusal is not None and call.is_control:
                    call.on_answer(call, Answer.failed(refusal))
                else:
                    self._book.unknown(call, link.peer.name, because)
        for call in retry:
            if refusal is None:
                self._again(call, NotExecuted(f"{link.peer.name} could not be reached: {because}"))
            else:
                call.on_answer(call, Answer.failed(refusal))
        if self._caller.closed == "":
            asyncio.get_running_loop().call_soon(self._choose_candidates)

    def on_peer_view(self, link: Link, version: int) -> None:
        """Gateways tell of newer views by themselves."""


def refusal_of(link: Link) -> NotExecuted | None:
    """Why the silo will have nothing to do with this client, where that is why the link has ended."""
    ending = link.ending
    if ending is None or not ending.by_peer:
        return None
    match ending.code:
        case RefusalCode.PERMISSION:
            return PermissionRefused(f"{link.peer.name}: {ending.text}")
        case RefusalCode.TOKEN | RefusalCode.CLUSTER | RefusalCode.PROTOCOL:
            return HandshakeRefused(f"{link.peer.name}: {ending.text}")
        case _:
            return None
