"""Links whose direct lane fails, over real sockets: what is under way goes on over gRPC, once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from silo.messaging.certificates import Certificates
from silo.messaging.direct_lane import DirectLane
from silo.messaging.limits import LinkLimits
from silo.messaging.link import Link
from silo.messaging.local_transport import LocalTransport
from silo.messaging.transport import Connection
from silo.messaging.transports import open_direct, open_grpc
from silo.wire.frames import Request
from tests.chaos.network import Network
from tests.support.authority import Authority, needs_openssl
from tests.support.waiting import until

from .link_world import LaneTransport, Process, ids, request, silo_identity
from .test_links_over_grpc import free_endpoint

HASTY = LinkLimits(link_ping_s=0.1, link_silence_s=0.3, link_resume_s=60, direct_trust_s=0.05, direct_retry_s=0.1)
CALM = LinkLimits(link_resume_s=60, direct_trust_s=0.05, direct_retry_s=0.1)
"""Where silence breaks nothing, however slow the machine is."""
NAMES = ("one", "two")
TROUBLES = 2


@pytest.fixture(params=["plain", pytest.param("tls", marks=needs_openssl)])
def certificates(request: pytest.FixtureRequest, tmp_path: Path) -> Certificates | None:
    return Authority(tmp_path).certify("silo") if request.param == "tls" else None


class Lanes:
    """The lanes of one sort of both silos: either may dial the other, and does when the other's connection is lost."""

    def __init__(self, transports: Sequence[object]) -> None:
        self._transports = [each for each in transports if isinstance(each, LaneTransport)]

    @property
    def dialled(self) -> list[Connection]:
        return [connection for each in self._transports for connection in each.dialled]

    @property
    def refused(self) -> int:
        return sum(each.refused for each in self._transports)

    def fail(self, fails: bool) -> None:
        for each in self._transports:
            each.fails = fails

    async def close_all(self) -> None:
        for connection in self.dialled:
            await connection.close()


class Pair:
    """Two silos that have met. The lane of each is reached through a door, which can be troubled."""

    def __init__(self, one: Process, two: Process, network: Network) -> None:
        self.one, self.two, self.network = one, two, network
        self.link: Link = one.links.to(two.address)

    @property
    def tcp(self) -> Lanes:
        return Lanes([process.lane.transport for process in (self.one, self.two) if process.lane is not None])

    @property
    def sockets(self) -> Lanes:
        return Lanes([process.lane.local for process in (self.one, self.two) if process.lane is not None])


@asynccontextmanager
async def pair(
    certificates: Certificates | None, folder: Path | None = None, limits: LinkLimits = HASTY
) -> AsyncGenerator[Pair]:
    async with Network() as network, AsyncExitStack() as closing, asyncio.timeout(90):
        processes: list[Process] = []
        for name in NAMES:
            endpoint = free_endpoint()
            lane = DirectLane(LaneTransport(open_direct(certificates)), "127.0.0.1:0")
            process = Process(
                open_grpc(certificates=certificates), silo_identity(endpoint), lane=lane, limits=limits, seed=len(name)
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
        yield Pair(processes[0], processes[1], network)


async def trouble(pair: Pair, what: str) -> None:
    network = pair.network

    def reset() -> int:
        return sum(network.reset("other", name) for name in NAMES)

    if what == "reset":
        await until(lambda: reset() > 0)
        return
    for name in NAMES:
        network.road("other", name).block()
        if what == "hold":
            network.road(name, "other").block()
    await asyncio.sleep(2 * HASTY.link_silence_s)
    if what == "cut":
        reset()
    network.heal()


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
        for _ in range(TROUBLES):
            await until(lambda: made.network.count("other") > 0 and link.attached)  # the lane carries it
            await one.got_ids(len(one.got) + 20)
            await trouble(made, what)
        await until(lambda: made.network.count("other") > 0 and link.attached)
        sending.cancel()
        sent = next(numbers)
        await one.got_ids(sent)
        assert ids([frame for frame in two.got if isinstance(frame, Request)]) == list(range(sent))
        assert ids(one.got) == list(range(sent))
        assert (one.lost, two.lost) == ([], [])


async def test_silos_on_one_host_talk_by_sockets_else_by_tcp_else_by_grpc(tmp_path: Path) -> None:
    async with pair(None, tmp_path / "s", CALM) as made:
        one, two, link = made.one, made.two, made.link

        async def calls() -> None:
            for _ in range(50):
                sent = len(one.got)
                link.send(request(sent))
                await one.got_ids(sent + 1)

        assert one.lane is not None
        assert two.lane is not None
        ways = one.lane.ways(two.lane.endpoint, two.lane.local_endpoint)
        assert [way.endpoint for way in ways] == [two.lane.local_endpoint, two.lane.endpoint]
        made.tcp.fail(True)  # it is tried where a socket was too slow to answer, on a machine with much to do
        two.answers = True
        await calls()
        await until(lambda: len(made.sockets.dialled) >= 1 and link.connections >= 2)
        made.tcp.fail(False)
        made.sockets.fail(True)
        await made.sockets.close_all()
        await calls()
        await until(lambda: len(made.tcp.dialled) >= 1)
        await calls()
        made.tcp.fail(True)
        await made.tcp.close_all()
        await calls()
        dialled = len(made.sockets.dialled)
        made.sockets.fail(False)
        await until(lambda: len(made.sockets.dialled) > dialled)
        await calls()
        assert ids(one.got) == list(range(250))
        assert (one.lost, two.lost) == ([], [])


async def test_a_socket_that_is_not_to_be_had_from_here_costs_nothing(tmp_path: Path) -> None:
    async with pair(None, tmp_path / "s", CALM) as made:
        assert made.one.lane is not None
        made.one.lane.local = elsewhere = LaneTransport(LocalTransport(tmp_path / "of another host"))
        made.link.send(request(1))
        await until(lambda: len(made.tcp.dialled) >= 1)
        assert (elsewhere.refused, made.sockets.dialled) == (0, [])
        await elsewhere.close()
