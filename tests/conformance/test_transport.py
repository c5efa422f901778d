"""What every transport promises, held by each of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from silo.directory.errors import EndpointInUse
from silo.messaging.certificates import Certificates
from silo.messaging.local_transport import LocalTransport
from silo.messaging.transport import Connection, ConnectionLost, Listener, Transport
from silo.messaging.transports import open_direct, open_grpc
from silo.testing.network import MemoryNetwork
from tests.support.authority import Authority, needs_openssl

Accept = Callable[[Connection], Awaitable[None]]


class Bench:
    """Two transports of a kind, and the listeners of a test, closed at its end.

    Args:
        anywhere: the endpoint of whoever minds not where it listens.
    """

    def __init__(self, here: Transport, there: Transport, anywhere: str = "127.0.0.1:0") -> None:
        self.here, self.there = here, there
        self.anywhere = anywhere
        self.listeners: list[Listener] = []
        self.accepted: asyncio.Queue[Connection] = asyncio.Queue()
        self._done: list[asyncio.Event] = []

    async def listen(self, accept: Accept | None = None) -> str:
        listener = await self.there.listen(self.anywhere, accept or self._hand_over)
        self.listeners.append(listener)
        return listener.endpoint

    async def _hand_over(self, connection: Connection) -> None:
        """The test speaks for the listening side, until it is over."""
        done = asyncio.Event()
        self._done.append(done)
        self.accepted.put_nowait(connection)
        await done.wait()

    def let_go(self) -> None:
        for done in self._done:
            done.set()

    async def close(self) -> None:
        self.let_go()
        await self.here.close()
        for listener in self.listeners:
            await listener.close()
        await self.there.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Authority(tmp_path_factory.mktemp("authority")).certify("somebody")


@pytest.fixture(
    params=[
        "grpc",
        pytest.param("grpc_tls", marks=needs_openssl),
        "direct",
        pytest.param("direct_tls", marks=needs_openssl),
        "local",
        "memory",
    ]
)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    kind, _, tls = request.param.partition("_")
    held: Certificates | None = request.getfixturevalue("certificates") if tls else None
    if kind == "memory":
        network = MemoryNetwork(random.Random(1))
        bench = Bench(network.transport("here"), network.transport("there"))
    elif kind == "local":
        bench = Bench(LocalTransport(tmp_path / "s"), LocalTransport(tmp_path / "s"), anywhere="")
    else:
        make = open_grpc if kind == "grpc" else open_direct
        bench = Bench(make(certificates=held), make(certificates=held))
    async with asyncio.timeout(20):
        yield bench
        await bench.close()


async def echo(connection: Connection) -> None:
    while (body := await connection.read()) is not None:
        await connection.write(bytes(body))


async def test_messages_keep_their_order_and_their_borders_both_ways(bench: Bench) -> None:
    connection = await bench.here.dial(await bench.listen(echo))
    sent = [b"", b"a", bytes(1), b"x" * 300_000, *(b"%d" % number for number in range(20))]
    writer = asyncio.create_task(write_all(connection, sent))
    assert [await connection.read() for _ in sent] == sent
    await writer


async def write_all(connection: Connection, bodies: list[bytes]) -> None:
    for body in bodies:
        await connection.write(body)


async def test_who_minds_not_where_it_listens_is_told_what_was_bound(bench: Bench) -> None:
    one, other = await bench.listen(), await bench.listen()
    assert len({one, other, bench.anywhere}) == 3
    if bench.anywhere:
        assert one.startswith("127.0.0.1:")
        assert other.startswith("127.0.0.1:")


async def test_an_endpoint_in_use_is_refused(bench: Bench) -> None:
    endpoint = await bench.listen()
    with pytest.raises(EndpointInUse, match=endpoint):
        await bench.here.listen(endpoint, echo)


async def test_nobody_listening_is_a_lost_connection(bench: Bench) -> None:
    endpoint = await bench.listen()
    await bench.listeners.pop().close()
    with pytest.raises(ConnectionLost):
        await bench.here.dial(endpoint)


async def test_an_end_that_closes_in_order_is_read_as_the_end_after_its_last_message(bench: Bench) -> None:
    endpoint = await bench.listen()
    connection = await bench.here.dial(endpoint)
    accepted = await bench.accepted.get()
    await connection.write(b"last")
    closing = asyncio.create_task(connection.close())
    assert await accepted.read() == b"last"
    assert await accepted.read() is None
    bench.let_go()
    await closing


async def test_a_listener_that_closes_in_order_is_read_as_the_end_after_its_last_message(bench: Bench) -> None:
    connection = await bench.here.dial(await bench.listen())
    accepted = await bench.accepted.get()
    await accepted.write(b"last")
    await accepted.close()
    assert await connection.read() == b"last"
    assert await connection.read() is None


async def test_accept_that_returns_closes_its_connection(bench: Bench) -> None:
    async def speak(connection: Connection) -> None:
        await connection.write(b"hello and goodbye")

    connection = await bench.here.dial(await bench.listen(speak))
    assert await connection.read() == b"hello and goodbye"
    assert await connection.read() is None


@pytest.mark.parametrize("end", ["dialler", "listener"])
async def test_closing_wakes_those_who_read(bench: Bench, end: str) -> None:
    dialled = await bench.here.dial(await bench.listen())
    accepted = await bench.accepted.get()
    connection = dialled if end == "dialler" else accepted
    reader = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    await connection.close()
    done, _ = await asyncio.wait({reader}, timeout=5)
    assert done
    assert reader.exception() is None or isinstance(reader.exception(), ConnectionLost)


async def test_S108_an_accept_that_is_cancelled_from_within_does_not_leave_the_dialler_waiting(bench: Bench) -> None:
    async def cancelled(connection: Connection) -> None:
        raise asyncio.CancelledError

    connection = await bench.here.dial(await bench.listen(cancelled))
    with contextlib.suppress(ConnectionLost):
        assert await asyncio.wait_for(connection.read(), 1.0) is None


async def test_S112_a_listener_stops_within_its_grace_although_streams_are_open(bench: Bench) -> None:
    endpoint = await bench.listen()
    connections = [await bench.here.dial(endpoint) for _ in range(10)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await bench.listeners.pop().close(0.2)
    assert loop.time() - began < 1.2
    for connection in connections:
        with contextlib.suppress(ConnectionLost):
            assert await connection.read() is None


async def test_a_writer_waits_for_a_reader_that_does_not_read(bench: Bench) -> None:
    connection = await bench.here.dial(await bench.listen())
    accepted = await bench.accepted.get()
    bodies = [bytes(256 * 1024)] * 64
    writer = asyncio.create_task(write_all(connection, bodies))
    done, _ = await asyncio.wait({writer}, timeout=0.2)
    assert not done, "16 MiB were taken in though nobody read"
    for _ in bodies:
        assert await accepted.read() is not None
    await writer


async def test_a_dial_that_is_given_up_leaves_nothing_behind(bench: Bench) -> None:
    endpoint = await bench.listen(echo)
    before = len(asyncio.all_tasks())
    for _ in range(20):
        dialling = asyncio.create_task(bench.here.dial(endpoint))
        await asyncio.sleep(0)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
    async with asyncio.timeout(5):
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - nothing announces the end of another's task
            await asyncio.sleep(0.01)


async def test_a_closed_transport_dials_no_more(bench: Bench) -> None:
    endpoint = await bench.listen()
    await bench.here.close()
    with pytest.raises(ConnectionLost):
        await bench.here.dial(endpoint)
