"""A few processes with links, over a simulated network or a real one, and what their handlers were told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from silo.directory.addresses import GrainId, SiloAddress
from silo.messaging.direct_lane import DirectLane
from silo.messaging.greeting import DIRECT, Credentials, Identity
from silo.messaging.limits import LinkLimits
from silo.messaging.link import Link
from silo.messaging.links import Links
from silo.messaging.local_transport import LocalTransport
from silo.messaging.permissions import Role
from silo.messaging.transport import Connection, ConnectionLost, Listener, Transport
from silo.wire.frames import Frame, Reply, Request

GRAIN = GrainId("k", "g")


def request(number: int, payload: bytes = b"", flags: int = 0) -> Request:
    return Request(number, GRAIN, "m", payload, 1, None, "caller", flags)


def ids(frames: list[Frame]) -> list[int]:
    return [frame.id for frame in frames if isinstance(frame, Request | Reply)]


class LaneTransport:
    """The transport of a direct lane that a test breaks, or keeps from being dialled.

    Attributes:
        fails: whether dialling it fails.
        refused: how often that has failed.
        dialled: the connections that were dialled, the newest last.
    """

    def __init__(self, inner: Transport) -> None:
        self.fails = False
        self.refused = 0
        self.dialled: list[Connection] = []
        self._inner = inner

    async def dial(self, endpoint: str) -> Connection:
        if self.fails:
            self.refused += 1
            raise ConnectionLost(f"{endpoint}: the test has closed it")
        try:
            self.dialled.append(await self._inner.dial(endpoint))
        except ConnectionLost:
            self.refused += 1
            raise
        return self.dialled[-1]

    def reaches(self, endpoint: str) -> bool:
        return isinstance(self._inner, LocalTransport) and self._inner.reaches(endpoint)

    async def listen(self, endpoint: str, accept: Callable[[Connection], Awaitable[None]]) -> Listener:
        return await self._inner.listen(endpoint, accept)

    async def close(self) -> None:
        await self._inner.close()


class Process:
    """One process: its links, and all that its handler was told.

    Attributes:
        answers: whether it replies to requests, with their payload.
    """

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        *,
        seed: int = 0,
        token: str | None = "secret",
        limits: LinkLimits | None = None,
        lane: DirectLane | None = None,
    ) -> None:
        if lane is not None:
            identity = replace(identity, features=(*identity.features, DIRECT))
        self.lane = lane
        self.transport = transport
        self.identity = identity
        self.answers = False
        self.view = 1
        self.got: list[Frame] = []
        self.lost: list[tuple[list[int], list[int], str]] = []
        self.lost_links: list[Link] = []
        self.views: list[int] = []
        self.attached = 0
        self.on_frame_also: Callable[[Link, Frame], None] = lambda link, frame: None
        self.listener: Listener | None = None
        self.lane_listener: Listener
        self._changed = asyncio.Event()
        self.links = Links(
            transport,
            identity,
            None if token is None else Credentials(token),
            self,
            limits=limits or LinkLimits(),
            rng=random.Random(f"{seed} {identity.name}"),
            view_version=lambda: self.view,
            lane=lane,
        )

    @property
    def address(self) -> SiloAddress:
        assert self.identity.silo is not None
        return self.identity.silo

    async def listen(self, endpoint: str) -> str:
        self.listener = await self.transport.listen(endpoint, self.links.accept)
        if self.lane is not None:
            self.lane_listener = await self.lane.transport.listen(self.lane.endpoint, self.links.accept)
            self.lane.endpoint = self.lane_listener.endpoint
        return self.listener.endpoint

    def on_frame(self, link: Link, frame: Frame) -> None:
        self.got.append(frame)
        self.on_frame_also(link, frame)
        if self.answers and isinstance(frame, Request):
            link.send(Reply(frame.id, 0, frame.payload))
        self._changed.set()

    def on_lost(self, link: Link, unsent: list[Frame], unknown: list[Frame], because: str) -> None:
        self.lost.append((ids(unsent), ids(unknown), because))
        self.lost_links.append(link)
        self._changed.set()

    def on_peer_view(self, link: Link, version: int) -> None:
        self.views.append(version)
        self._changed.set()

    def on_attached(self, link: Link) -> None:
        self.attached += 1
        self._changed.set()

    def on_detached(self, link: Link) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait for what the handler is told to make this true."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def got_ids(self, count: int, timeout_s: float = 60.0) -> list[int]:
        await self.until(lambda: len(self.got) >= count, timeout_s)
        return ids(self.got)

    async def close(self, grace_s: float = 1.0) -> None:
        await self.links.close(grace_s)
        if self.listener is not None:
            await self.listener.close()
            if self.lane is not None:
                await self.lane_listener.close()
                await self.lane.transport.close()
        await self.transport.close()


def silo_identity(endpoint: str, incarnation: int = 1, cluster: str = "test") -> Identity:
    address = SiloAddress(endpoint, incarnation)
    return Identity(str(address), Role.SILO, cluster, address)
