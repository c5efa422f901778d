"""All links of one process: who dials whom, which connection carries which session, and when that is over."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from silo.directory.addresses import SiloAddress
from silo.logs import get_logger
from silo.messaging.carrier import Ending, Pace
from silo.messaging.direct_lane import DirectLane, Way
from silo.messaging.greeting import (
    NONCE_BYTES,
    Credentials,
    DiallerGreeting,
    Identity,
    ListenerGreeting,
    Peer,
    RefusalCode,
    Refused,
    Terms,
)
from silo.messaging.limits import LinkLimits, backoff_s
from silo.messaging.link import Link, LinkHandler
from silo.messaging.permissions import Role
from silo.messaging.session import Session
from silo.messaging.transport import Connection, ConnectionLost, Transport

log = get_logger(__name__)


class _Greeted(NamedTuple):
    """A connection that was dialled and greeted, and may carry a session."""

    connection: Connection
    peer: Peer
    terms: Terms
    opened: bytes
    last: bytes
    greeting: DiallerGreeting


class Links:
    """The links of one process.

    Args:
        transport: how to reach others.
        identity: what this process says of itself.
        credentials: what proves it; None in a cluster without a token.
        handler: who is told what happens on links.
        limits: the bounds of every link.
        rng: jitters pauses, and gives nonces and challenges: outside of simulation it must be a `random.SystemRandom`.
        view_version: the version of this process's view, which each batch names.
        lane: the direct lane; None for a process whose links all stay on the streams of gRPC.
    """

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        credentials: Credentials | None,
        handler: LinkHandler,
        *,
        limits: LinkLimits,
        rng: random.Random,
        view_version: Callable[[], int],
        lane: DirectLane | None = None,
    ) -> None:
        self._transport = transport
        self._identity = identity
        self._credentials = credentials
        self._handler = handler
        self._limits = limits
        self._rng = rng
        self._view_version = view_version
        self._lane = lane
        self._links: dict[str, Link] = {}
        self.get = self._links.get
        """The link to the peer of a name, or None."""
        self._by_silo: dict[SiloAddress, Link] = {}
        self.of_silo = self._by_silo.get
        """The link to a silo, or None."""
        self._dialling: dict[Link, asyncio.Task[None]] = {}
        self._ended_silos: OrderedDict[SiloAddress, str] = OrderedDict()
        self._offered: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._pace = Pace()
        self._greetings = 0
        self._closing = False

    # -- what its users call ------------------------------------------------------------------------------------------

    def to(self, silo: SiloAddress) -> Link:
        """The link to a silo, which is dialled if there is none; frames may be sent on it at once.

        For a silo that `end` was told of, or after `close`, it is a link that has ended already.
        """
        link = self._by_silo.get(silo)
        if link is not None:
            return link
        if silo == self._identity.silo:
            raise ValueError(f"{silo} is this very silo: a link leads to another one")
        link = self._new_link(Peer(str(silo), Role.SILO, silo), self._offered_to(str(silo)), silo.endpoint)
        if self._closing:
            link.never_began(Ending(f"{self._identity.name} is closing", RefusalCode.CLOSING))
        elif silo in self._ended_silos:
            link.never_began(Ending(self._ended_silos[silo], RefusalCode.DEAD))
        else:
            self._begin(link, self._keep_connected(link, pause_s=0.0))
        return link

    def all(self) -> list[Link]:
        """The links that have not ended, attached or not."""
        return list(self._links.values())

    def end(self, silo: SiloAddress, because: str) -> None:
        """A silo is dead by the view: its link is lost at once, and it is refused from now on."""
        self._ended_silos[silo] = because
        while len(self._ended_silos) > self._limits.ended_silos_max:
            self._ended_silos.popitem(last=False)
        link = self._by_silo.get(silo)
        if link is not None:
            link.end(Ending(because, RefusalCode.DEAD))

    def revive(self, silo: SiloAddress) -> None:
        """A silo that `end` was told of is alive by a table that was set back since: it is dialled, and accepted."""
        self._ended_silos.pop(silo, None)

    async def dial_gateway(self, endpoint: str, *, even_dead: bool = False) -> Link:
        """The link to whichever silo answers at `host:port`.

        Args:
            even_dead: whether one that `end` was told of is wanted, too, and revived if it answers.

        Raises:
            HandshakeRefused: it answered, and refused.
            ConnectionLost: nobody answered in time.
        """
        nonce = self._nonce()
        within_s = self._limits.greeting_timeout_s
        greeted = await self._dial(self._transport, endpoint, nonce, expects=None, last=b"", within_s=within_s)
        if even_dead and greeted.peer.silo is not None:
            self.revive(greeted.peer.silo)
        known = self._links.get(greeted.peer.name)
        refused = self._closing or greeted.peer.silo in self._ended_silos
        if known is not None or refused:
            await greeted.connection.close()
            if known is None:
                raise ConnectionLost(f"{greeted.peer.name} at {endpoint} is no longer wanted")
            known.endpoint = endpoint
            return known
        link = self._new_link(greeted.peer, nonce, endpoint)
        self._begin(link, self._keep_connected(link, greeted=greeted, pause_s=0.0))
        return link

    async def accept(self, connection: Connection) -> None:
        """Greet whoever dialled and carry its link over this connection; returns when that is over."""
        if self._closing or self._greetings >= self._limits.greetings_max:
            await connection.close()
            return
        self._greetings += 1
        try:
            async with asyncio.timeout(self._limits.greeting_timeout_s):
                agreed = await self._greet(connection)
        except (Refused, ConnectionLost, TimeoutError) as error:
            # Silos that start together dial each other at once, and one of the two hangs up: nobody need hear of that.
            level = logging.DEBUG if isinstance(error, ConnectionLost) else logging.INFO
            why = str(error) or "it took too long"
            log.log(level, "link.greeting_failed", remote=connection.remote, why=why)
            await connection.close()
            return
        except BaseException:
            await connection.close()
            raise
        finally:
            self._greetings -= 1
        link, greeting, received = agreed
        hello = greeting.hello
        if not link.prefers(hello.name, hello.last):
            await connection.close()
            return
        await link.carry(
            connection,
            opened=hello.challenge,
            dialler=hello.name,
            peer_nonce=hello.session,
            peer_received=received,
        )

    async def close(self, grace_s: float) -> None:
        """Accept and dial no more, get what is queued acknowledged within the grace, then end all links."""
        self._closing = True
        links = self.all()
        await _all_within([link.drained() for link in links], grace_s)
        for link in links:
            link.end(Ending(f"{self._identity.name} closed", RefusalCode.CLOSING))
        await _all_within([link.detached() for link in links], 2 * self._limits.goodbye_timeout_s)
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- links --------------------------------------------------------------------------------------------------------

    def _nonce(self) -> bytes:
        return self._rng.randbytes(NONCE_BYTES)

    def _new_link(self, peer: Peer, nonce: bytes, endpoint: str) -> Link:
        return Link(
            peer,
            Session(nonce, self._limits),
            self._handler,
            self._limits,
            endpoint=endpoint,
            view_version=self._view_version,
            on_ended=self._forget,
            pace=self._pace,
        )

    def _begin(self, link: Link, connecting: Coroutine[None, None, None] | None) -> None:
        self._links[link.peer.name] = link
        if link.peer.silo is not None:
            self._by_silo[link.peer.silo] = link
        if connecting is not None:
            task = asyncio.get_running_loop().create_task(connecting)
            self._dialling[link] = task
            task.add_done_callback(lambda _: self._dialling.pop(link, None))

    def _forget(self, link: Link) -> None:
        if self._links.get(link.peer.name) is link:
            del self._links[link.peer.name]
            if link.peer.silo is not None:
                self._by_silo.pop(link.peer.silo, None)

    # -- dialling -----------------------------------------------------------------------------------------------------

    async def _keep_connected(self, link: Link, *, pause_s: float, greeted: _Greeted | None = None) -> None:
        """Dial whenever no connection carries the link, until it ends."""
        attempt = 0
        redial_s = pause_s
        while link.ending is None:
            try:
                if greeted is None:
                    await link.detached()
                    await asyncio.sleep(pause_s)
                    if link.attached or self._links.get(link.peer.name) is not link:
                        continue
                    greeted = await self._dial(
                        self._transport,
                        link.endpoint,
                        link.session.nonce,
                        expects=link.peer.silo,
                        last=link.opened,
                        within_s=self._limits.greeting_timeout_s,
                    )
                await self._carry_on_best(link, greeted)
                attempt = 0
            except Refused as error:
                link.end(Ending(str(error), error.code, by_peer=True))
            except ConnectionLost as error:
                log.debug("link.not_connected", peer=link.peer.name, endpoint=link.endpoint, why=str(error))
                attempt += 1
            except Exception as error:
                log.exception("link.dialling_failed", peer=link.peer.name, endpoint=link.endpoint)
                link.end(Ending(f"dialling failed: {error!r}", RefusalCode.FAILED))
            greeted = None
            pause_s = max(redial_s, backoff_s(max(0, attempt - 1), self._limits, self._rng))

    async def _dial(
        self,
        transport: Transport,
        endpoint: str,
        nonce: bytes,
        *,
        expects: SiloAddress | None,
        last: bytes,
        within_s: float,
    ) -> _Greeted:
        challenge = self._nonce()
        greeting = DiallerGreeting(
            self._identity, self._credentials, challenge=challenge, session=nonce, expects=expects, last=last
        )
        try:
            async with asyncio.timeout(within_s):
                connection = await transport.dial(endpoint)
                try:
                    await connection.write(greeting.hello)
                    answer = await connection.read()
                    if answer is None:
                        raise ConnectionLost(f"{endpoint} hung up during the greeting")
                    peer, terms = greeting.on_answer(bytes(answer))
                except BaseException:
                    await connection.close()
                    raise
        except TimeoutError:
            raise ConnectionLost(f"no greeting from {endpoint} in {within_s} s") from None
        return _Greeted(connection, peer, terms, challenge, last, greeting)

    async def _carry_on_best(self, link: Link, greeted: _Greeted) -> None:
        """Carry the link over the stream of gRPC, of which the direct lane takes the place once it can be had."""
        lane = self._lane
        ways = [] if lane is None else lane.ways(greeted.terms.direct, greeted.terms.local)
        if lane is None or not ways:
            await self._carry_dialled(link, greeted)
            return
        loop, peer = asyncio.get_running_loop(), link.peer.name
        carrying = loop.create_task(self._carry_dialled(link, greeted))
        try:
            while not carrying.done():
                now = loop.time()
                avoided_s = {way: lane.avoided_s(peer, way, now) for way in ways}
                way = min(ways, key=avoided_s.__getitem__)  # the best of those that may be tried
                await asyncio.wait({carrying}, timeout=avoided_s[way])
                if not carrying.done():
                    await self._carry_directly(link, lane, way)
            carrying.result()
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)

    async def _carry_directly(self, link: Link, lane: DirectLane, way: Way) -> None:
        """Carry the link over the peer's direct lane, for as long as that lasts; where it cannot be had, at no time."""
        loop, limits, nonce = asyncio.get_running_loop(), self._limits, link.session.nonce
        peer, endpoint = link.peer.name, way.endpoint
        within_s = limits.greeting_timeout_s
        try:
            direct = await self._dial(
                way.transport, endpoint, nonce, expects=link.peer.silo, last=link.opened, within_s=within_s
            )
        except (ConnectionLost, Refused) as error:
            log.info("link.direct_lane_missed", peer=peer, endpoint=endpoint, why=str(error))
            lane.missed(peer, way, loop.time(), limits)
            return
        began = loop.time()
        await self._carry_dialled(link, direct)
        lasted_s = loop.time() - began
        if lasted_s >= limits.direct_trust_s:
            lane.held(peer, way)
        elif link.ending is None and not link.attached:
            log.info("link.direct_lane_lost", peer=peer, endpoint=endpoint, after_s=round(lasted_s, 3))
            lane.lost(peer, way, loop.time(), limits)
        else:  # such as when two silos dial each other, and another connection has the link
            lane.missed(peer, way, loop.time(), limits)

    async def _carry_dialled(self, link: Link, greeted: _Greeted) -> None:
        session, terms, connection = link.session, greeted.terms, greeted.connection
        if session.peer_nonce not in (b"", terms.session):
            link.end(Ending(f"{link.peer.name} has begun a new session", RefusalCode.CLOSING))
        if link.ending is not None or not link.prefers(self._identity.name, greeted.last):
            await connection.close()
            return
        link.peer = greeted.peer
        try:
            await connection.write(greeted.greeting.proof(session.received))
        except BaseException:
            await connection.close()
            raise
        await link.carry(
            connection,
            opened=greeted.opened,
            dialler=self._identity.name,
            peer_nonce=terms.session,
            peer_received=terms.received,
        )

    # -- accepting ----------------------------------------------------------------------------------------------------

    async def _greet(self, connection: Connection) -> tuple[Link, ListenerGreeting, int]:
        try:
            greeting = ListenerGreeting(self._identity, self._credentials, await _next(connection))
            peer, hello = greeting.peer, greeting.hello
            if peer.silo is not None and peer.silo in self._ended_silos:
                raise Refused(RefusalCode.DEAD, f"{peer.name} is dead: {self._ended_silos[peer.silo]}")
            before = self._links.get(peer.name)
            resumes = before is not None and before.session.peer_nonce in (b"", hello.session)
            nonce = before.session.nonce if before is not None and resumes else self._offer(peer.name, hello.session)
            received = before.session.received if before is not None and resumes else 0
            lane = self._lane
            direct, local = (lane.endpoint, lane.local_endpoint) if lane is not None else ("", "")
            await connection.write(
                greeting.welcome(challenge=self._nonce(), session=nonce, received=received, direct=direct, local=local)
            )
            proof = greeting.on_proof(await _next(connection))
        except Refused as error:
            await connection.write(error.message())
            raise
        if self._closing:
            raise ConnectionLost(f"{self._identity.name} is closing")
        # The greeting took time: it holds only if the link is still what it was, or began meanwhile as the one offered.
        present = self._links.get(peer.name)
        if before is None and present is not None and present.session.nonce == nonce:
            before, resumes = present, True
        if present is not before or (
            before is not None and resumes and before.session.peer_nonce not in (b"", hello.session)
        ):
            raise ConnectionLost(f"the link to {peer.name} changed during the greeting")
        if before is not None and resumes:
            before.peer = peer
            return before, greeting, proof.received
        self._offered.pop((peer.name, hello.session), None)
        endpoint = peer.silo.endpoint if peer.silo is not None else ""
        link = self._new_link(peer, nonce, endpoint)
        redial = self._keep_connected(link, pause_s=self._limits.link_redial_s) if endpoint else None
        self._begin(link, redial)
        if before is not None:
            before.end(Ending(f"{peer.name} has begun a new session", RefusalCode.CLOSING))
        return link, greeting, proof.received

    def _offered_to(self, name: str) -> bytes:
        """The nonce of a session that begins here: the one that a greeting under way has offered the peer, if one has.

        Otherwise the peer, which may believe in that one already, would lose what it sends on it.
        """
        offered = (nonce for (peer, _), nonce in reversed(self._offered.items()) if peer == name)
        return next(offered, None) or self._nonce()

    def _offer(self, name: str, session: bytes) -> bytes:
        """The nonce for a session that begins if this greeting succeeds.

        If only its last word is lost, the dialler believes in the session already; so the same one is offered again,
        until it has begun. Once it was over, another is.
        """
        nonce = self._offered.pop((name, session), None) or self._nonce()
        self._offered[name, session] = nonce
        while len(self._offered) > self._limits.greetings_max:
            self._offered.popitem(last=False)
        return nonce


async def _next(connection: Connection) -> bytes:
    body = await connection.read()
    if body is None:
        raise ConnectionLost(f"{connection.remote} hung up during the greeting")
    return bytes(body)


async def _all_within(waits: list[Coroutine[None, None, None]], timeout_s: float) -> None:
    """Run these until all are done or the time is over."""
    if not waits:
        return
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
