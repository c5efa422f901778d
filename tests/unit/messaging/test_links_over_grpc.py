"""Links over real gRPC streams on loopback: what only the real transport can show."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.errors import EndpointInUse, EndpointUnusable, HandshakeRefused
from silo.messaging.greeting import Identity
from silo.messaging.grpc_transport import CHANNEL_OPTIONS, SERVER_OPTIONS, GrpcTransport
from silo.messaging.limits import LinkLimits
from silo.messaging.permissions import Role
from silo.wire.frames import Reply, Request

from .link_world import Process, ids, request, silo_identity

MIB = 1024 * 1024


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Cluster:
    """Processes with gRPC transports, closed at the end of a test."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    async def silo(self, endpoint: str = "", incarnation: int = 1) -> Process:
        endpoint = endpoint or free_endpoint()
        process = Process(GrpcTransport(), silo_identity(endpoint, incarnation), seed=incarnation)
        self.processes.append(process)
        await process.listen(endpoint)
        process.answers = True
        return process

    def client(self, token: str | None = "secret") -> Process:
        process = Process(GrpcTransport(), Identity("client", Role.CLIENT, "test"), token=token)
        self.processes.append(process)
        return process


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    async with asyncio.timeout(30):
        yield made
        for process in made.processes:
            await process.close(grace_s=0.2)


async def test_calls_and_replies_travel_both_ways_over_one_stream(cluster: Cluster) -> None:
    one, two = await cluster.silo(), await cluster.silo()
    for number in range(1_000):
        one.links.to(two.address).send(request(number))
        two.links.to(one.address).send(request(10_000 + number))
    await one.got_ids(2_000)
    await two.got_ids(2_000)
    for process, others in ((one, 10_000), (two, 0)):
        requests = [frame for frame in process.got if isinstance(frame, Request)]
        assert ids([*requests]) == list(range(others, others + 1_000))


async def test_20_mib_payloads_do_not_hold_up_small_calls(cluster: Cluster) -> None:
    one, two = await cluster.silo(), await cluster.silo()
    link = one.links.to(two.address)
    link.send(request(0, bytes(20 * MIB)))
    link.send(request(1, bytes(20 * MIB)))
    link.send(request(2))
    assert sorted(await one.got_ids(3)) == [0, 1, 2]
    assert ids(one.got)[0] == 2
    assert all(len(reply.payload) == 20 * MIB for reply in one.got[1:] if isinstance(reply, Reply))


async def test_a_wrong_token_is_refused_with_its_reason(cluster: Cluster) -> None:
    two = await cluster.silo()
    with pytest.raises(HandshakeRefused, match="not the one of the silo that answered"):
        await cluster.client(token="other").links.dial_gateway(two.address.endpoint)
    with pytest.raises(HandshakeRefused, match="SILO_CLUSTER_TOKEN"):
        await cluster.client(token=None).links.dial_gateway(two.address.endpoint)


async def test_a_second_silo_on_one_endpoint_is_refused_in_plain_words(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    one = await cluster.silo()
    capfd.readouterr()
    with pytest.raises(EndpointInUse, match=f"another process listens at {one.address.endpoint}"):
        await cluster.silo(one.address.endpoint, 2)
    assert capfd.readouterr().err == "", "the gRPC core has words of its own for that"


async def test_an_endpoint_where_connections_of_a_former_silo_linger_is_had_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as former:
        endpoint = "{}:{}".format(*former.getsockname())
        with socket.create_connection(former.getsockname()) as peer:
            former.accept()[0].close()  # whoever closes first has the connection in TIME_WAIT
            assert peer.recv(1) == b""
    listener = await GrpcTransport().listen(endpoint, lambda connection: connection.close())
    assert listener.endpoint == endpoint
    await listener.close(0.0)


async def test_an_endpoint_that_cannot_be_bound_is_another_error() -> None:
    with pytest.raises(EndpointUnusable, match=r"^cannot listen at .*; name an address of this machine") as caught:
        await GrpcTransport().listen("192.0.2.1:0", lambda connection: connection.close())
    assert not isinstance(caught.value, EndpointInUse)


async def test_S114_a_silo_that_restarts_on_its_endpoint_is_reached_within_two_seconds(cluster: Cluster) -> None:
    one, two = await cluster.silo(), await cluster.silo()
    one.links.to(two.address).send(request(1))
    await two.got_ids(1)
    await two.close(grace_s=0.2)
    later = SiloAddress(two.address.endpoint, 2)
    one.links.to(later).send(request(2))
    await asyncio.sleep(1.5)  # long enough for back-off to grow
    again = await cluster.silo(two.address.endpoint, 2)
    await again.until(lambda: ids(again.got) == [2], timeout_s=2)


async def test_S115_proxies_of_the_environment_are_ignored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    two = await cluster.silo()
    await cluster.client().links.dial_gateway(two.address.endpoint)


def test_S110_a_server_bears_whatever_its_clients_ping() -> None:
    """Links write something every second; these pings are for a channel that carries nothing else."""
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    assert server["grpc.http2.min_ping_interval_without_data_ms"] <= client["grpc.keepalive_time_ms"]
    assert server["grpc.http2.max_ping_strikes"] == 0
    assert client["grpc.http2.max_pings_without_data"] == 0
    assert client["grpc.keepalive_permit_without_calls"] == server["grpc.keepalive_permit_without_calls"] == 1
    limits = LinkLimits()
    assert limits.link_ping_s < limits.link_silence_s < client["grpc.keepalive_time_ms"] / 1_000


async def test_S109_connections_that_come_and_go_leave_no_socket_and_no_task_behind(cluster: Cluster) -> None:
    def sockets() -> int:
        found = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                found += os.readlink(f"/proc/self/fd/{name}").startswith("socket")
            except FileNotFoundError:
                continue  # the descriptor of the listing itself
        return found

    async def round_trip() -> None:
        client = Process(GrpcTransport(), Identity("passing", Role.CLIENT, "test"), seed=next(seeds))
        (await client.links.dial_gateway(two.address.endpoint)).send(request(1))
        await client.got_ids(1)
        await client.close()

    seeds = iter(range(100))
    two = await cluster.silo()
    for _ in range(3):
        await round_trip()
    await asyncio.sleep(0.2)
    before = sockets(), len(asyncio.all_tasks())
    for _ in range(30):
        await round_trip()
    async with asyncio.timeout(5):
        while sockets() > before[0] or len(asyncio.all_tasks()) > before[1]:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.05)
    assert two.links.all() == []
