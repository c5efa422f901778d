"""Links whose direct lane fails, over real sockets: what is under way goes on over gRPC, each frame once and in order."""

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
from silo.messaging.transports import open_direct, open_grpc
from silo.wire.frames import Request
from tests.chaos.network import Network
from tests.support.authority import Authority, needs_openssl
from tests.support.waiting import until

from .link_world import LaneTransport, Process, ids, request, silo_identity
from .test_links_over_grpc import free_endpoint

HASTY = LinkLimits(link_ping_s=0.1, link_silence_s=0.3, direct_trust_s=0.05, direct_retry_s=0.1)
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
    def lanes_dialled(self) -> int:
        assert self.one.lane is not None
        assert isinstance(self.one.lane.transport, LaneTransport)
        return len(self.one.lane.transport.dialled)


@asynccontextmanager
async def pair(certificates: Certificates | None) -> AsyncGenerator[Pair]:
    async with Network() as network, AsyncExitStack() as closing, asyncio.timeout(30):
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
            processes.append(process)
        one, two = processes
        assert one.lane is not None
        one.lane.endpoint = ""  # so that there is one lane, which the first dials
        yield Pair(one, two, network)


async def trouble(pair: Pair, what: str) -> None:
    there, back = pair.network.road("other", "two"), pair.network.road("two", "other")
    if what == "reset":
        assert pair.network.reset("other", "two") > 0
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
        for round_number in range(1, TROUBLES + 1):
            await until(lambda wanted=round_number: made.lanes_dialled >= wanted and link.attached)
            await one.got_ids(len(one.got) + 20)
            await trouble(made, what)
        await until(lambda: made.lanes_dialled > TROUBLES)  # it is had again
        sending.cancel()
        sent = next(numbers)
        await one.got_ids(sent)
        assert ids([frame for frame in two.got if isinstance(frame, Request)]) == list(range(sent))
        assert ids(one.got) == list(range(sent))
        assert (one.lost, two.lost) == ([], [])
