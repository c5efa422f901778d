"""Links whose direct lane fails, over real sockets: what is under way goes on over gRPC, once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from silo.messaging.certificates import Certificates
from silo.messaging.direct_lane import DirectLane
from silo.messaging.limits import LinkLimits
from silo.messaging.link import Link
from silo.messaging.local_transport import LocalTransport
from silo.messaging.transports import open_direct, open_grpc
from silo.wire.frames import Request
from tests.chaos.network import Network
from tests.support.authority import Authority, needs_openssl
from tests.support.waiting import until

from .link_world import LaneTransport, Process, ids, request, silo_identity
from .test_links_over_grpc import free_endpoint

HASTY = LinkLimits(link_ping_s=0.1, link_silence_s=0.3, link_resume_s=60, direct_trust_s=0.05, direct_retry_s=0.1)
TROUBLES = 2


@pytest.fixture(params=["plain", pytest.param("tls", marks=needs_openssl)])
def certificates(request: pytest.FixtureRequest, tmp_path: Path) -> Certificates | None:
    return Authority(tmp_path).certify("silo") if request.param == "tls" else None


class Pair:
    """Two silos that have met. The lane of the second is reached through a door, which can be troubled."""

    def __init__(self, one: Process, two: Process, network: Network) -> None:
        self.one, self.two, self.network = one, two, network
        self.link: Link = one.links.to(two.address)

    @property
    def tcp(self) -> LaneTransport:
        assert self.one.lane is not None
        assert isinstance(self.one.lane.transport, LaneTransport)
        return self.one.lane.transport

    @property
    def sockets(self) -> LaneTransport:
        assert self.one.lane is not None
        assert isinstance(self.one.lane.local, LaneTransport)
        return self.one.lane.local

    @property
    def lanes_dialled(self) -> int:
        return len(self.tcp.dialled)

    async def has_lane(self, times: int) -> None:
        """Wait until the lane was had so many times."""
        await until(lambda: self.lanes_dialled >= times and self.link.attached)


@asynccontextmanager
async def pair(certificates: Certificates | None, folder: Path | None = None) -> AsyncGenerator[Pair]:
    async with Network() as network, AsyncExitStack() as closing, asyncio.timeout(90):
        processes: list[Process] = []
        for name in ("one", "two"):
            endpoint = free_endpoint()
            lane = DirectLane(LaneTransport(open_direct(certificates)), "127.0.0.1:0")
            process = Process(
                open_grpc(certificates=certificates), silo_identity(endpoint), lane=lane, limits=HASTY, seed=len(name)
            )
            closing.push_async_callback(process.close, 0.2)
            await process.listen(endpoint)
            port = int(lane.endpoint.rpartition(":")[2])
            lane.endpoint = f"127.0.0.1:{await network.door(name, '127.0.0.1', port, dialler='other')}"
            if folder is not None:
                lane.local = local = LaneTransport(LocalTransport(folder))
                closing.push_async_callback(local.close)
                sockets = await local.listen("", process.links.accept)
                closing.push_async_callback(sockets.close)
                lane.local_endpoint = sockets.endpoint
            processes.append(process)
        one, two = processes
        assert one.lane is not None
        one.lane.endpoint = one.lane.local_endpoint = ""  # so that there is one lane, which the first dials
        yield Pair(one, two, network)


async def trouble(pair: Pair, what: str) -> None:
    there, back = pair.network.road("other", "two"), pair.network.road("two", "other")
    if what == "reset":
        await until(lambda: pair.network.reset("other", "two") > 0)
        return
    there.block()
    if what == "hold":
        back.block()
    await asyncio.sleep(2 * HASTY.link_silence_s)
    if what == "cut":
        pair.network.reset("other", "two")
    there.clear()
    back.clear()


@pytest.mark.parametrize("what", ["reset", "cut", "hold"])
async def test_a_lane_that_is_troubled_under_way_costs_no_frame(certificates: Certificates | None, what: str) -> None:
    async with pair(certificates) as made:
        one, two, link = made.one, made.two, made.link
        two.answers = True
        numbers = iter(range(10_000))

        async def send_all() -> None:
            while True:
                link.send(request(next(numbers)))
                await asyncio.sleep(0.001)

        sending = asyncio.create_task(send_all())
        troubled = 0
        while troubled < TROUBLES:
            await made.has_lane(troubled + 1)
            await one.got_ids(len(one.got) + 20)
            await trouble(made, what)
            troubled += 1
        await made.has_lane(troubled + 1)
        sending.cancel()
        sent = next(numbers)
        await one.got_ids(sent)
        assert ids([frame for frame in two.got if isinstance(frame, Request)]) == list(range(sent))
        assert ids(one.got) == list(range(sent))
        assert (one.lost, two.lost) == ([], [])


async def test_silos_on_one_host_talk_by_sockets_else_by_tcp_else_by_grpc(tmp_path: Path) -> None:
    async with pair(None, tmp_path / "s") as made:
        one, two, link = made.one, made.two, made.link

        async def calls() -> None:
            for _ in range(50):
                sent = len(one.got)
                link.send(request(sent))
                await one.got_ids(sent + 1)

        two.answers = True
        await calls()
        await until(lambda: len(made.sockets.dialled) == 1 and link.connections == 2)
        assert made.tcp.dialled == []
        made.sockets.fails = True
        await made.sockets.dialled[0].close()
        await calls()
        await until(lambda: len(made.tcp.dialled) == 1)
        await calls()
        made.tcp.fails = True
        await made.tcp.dialled[0].close()
        await calls()
        connections = link.connections
        made.sockets.fails = False
        await until(lambda: len(made.sockets.dialled) == 2 and link.connections > connections)
        await calls()
        assert ids(one.got) == list(range(250))
        assert (one.lost, two.lost) == ([], [])


async def test_a_socket_that_is_not_to_be_had_from_here_costs_nothing(tmp_path: Path) -> None:
    async with pair(None, tmp_path / "s") as made:
        assert made.one.lane is not None
        elsewhere = LaneTransport(LocalTransport(tmp_path / "of another host"))
        made.one.lane.local = elsewhere
        made.link.send(request(1))
        await until(lambda: made.lanes_dialled == 1)
        assert elsewhere.refused == 0
        await elsewhere.close()
