"""The network in memory: order, delay, cuts, resets, kills, full windows, and endpoints."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.errors import EndpointInUse
from silo.messaging.transport import Connection, ConnectionLost
from silo.testing.network import MemoryNetwork
from silo.testing.nodes import Node, current_node
from silo.testing.virtual_time import CallbackFailed, VirtualTimeLoop, run

ENDPOINT = "server:7000"


class Sink:
    """An accepting side that keeps what it reads, and how its connections ended."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.times: list[float] = []
        self.ends: list[str] = []
        self.connections: list[Connection] = []
        self.nodes: list[Node | None] = []

    async def accept(self, connection: Connection) -> None:
        self.connections.append(connection)
        self.nodes.append(current_node())
        try:
            while (body := await connection.read()) is not None:
                self.got.append(bytes(body))
                self.times.append(asyncio.get_running_loop().time())
            self.ends.append("closed")
        except ConnectionLost:
            self.ends.append("lost")


def network(seed: int = 1, **options: object) -> MemoryNetwork:
    return MemoryNetwork(random.Random(seed), **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - test shorthand


def in_virtual_time(main: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """A test that runs under virtual time."""

    def test() -> None:
        run(main, leaks_allowed=True)

    test.__name__ = main.__name__
    return test


def loop_now() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


@in_virtual_time
async def test_messages_arrive_whole_in_order_and_delayed() -> None:
    net, sink = network(delay_s=(0.01, 0.5)), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    connection = await net.transport("client").dial(ENDPOINT)
    sent_at = loop_now().time()
    bodies = [b"%d" % number for number in range(20)]
    for body in bodies:
        await connection.write(body)
    await connection.close()
    await asyncio.sleep(5)
    assert sink.got == bodies
    assert sink.times == sorted(sink.times)
    assert all(0.01 <= time - sent_at <= 0.5 for time in sink.times)
    assert sink.ends == ["closed"]


@in_virtual_time
async def test_both_ends_read_and_write() -> None:
    net = network()

    async def echo(connection: Connection) -> None:
        while (body := await connection.read()) is not None:
            await connection.write(b"echo " + body)

    await net.transport("server").listen(ENDPOINT, echo)
    connection = await net.transport("client").dial(ENDPOINT)
    await connection.write(b"one")
    await connection.write(b"two")
    assert [await connection.read(), await connection.read()] == [b"echo one", b"echo two"]
    await connection.close()


@in_virtual_time
async def test_an_accept_that_returns_ends_the_stream_in_order() -> None:
    net = network()

    async def greet(connection: Connection) -> None:
        await connection.write(b"hello")

    await net.transport("server").listen(ENDPOINT, greet)
    connection = await net.transport("client").dial(ENDPOINT)
    assert await connection.read() == b"hello"
    assert await connection.read() is None
    assert await connection.read() is None
    with pytest.raises(ConnectionLost):
        await connection.write(b"too late")


@in_virtual_time
async def test_closing_wakes_the_own_reader_and_writer() -> None:
    net = network(window_messages=2)

    async def never_read(connection: Connection) -> None:
        await asyncio.sleep(1000)

    await net.transport("server").listen(ENDPOINT, never_read)
    connection = await net.transport("client").dial(ENDPOINT)
    await connection.write(b"one")
    writing = asyncio.create_task(connection.write(b"two"))
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(1)
    await connection.close()
    results = await asyncio.gather(reading, writing, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionLost, ConnectionLost]


@in_virtual_time
async def test_a_cut_holds_messages_until_it_is_healed() -> None:
    net, sink = network(), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    connection = await net.transport("client").dial(ENDPOINT)
    await connection.write(b"before")  # on its way when the cut comes
    net.cut("client", "server")
    await connection.write(b"during")
    await connection.close()
    await asyncio.sleep(60)
    assert (sink.got, sink.ends) == ([], [])
    net.heal("client", "server")
    await asyncio.sleep(1)
    assert (sink.got, sink.ends) == ([b"before", b"during"], ["closed"])


@in_virtual_time
async def test_a_one_way_cut_lets_the_other_way_through() -> None:
    net, sink = network(), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    connection = await net.transport("client").dial(ENDPOINT)
    await asyncio.sleep(1)
    net.cut("client", "server", one_way=True)
    await connection.write(b"held")
    await sink.connections[0].write(b"answer")
    assert await connection.read() == b"answer"
    assert sink.got == []
    net.heal()
    await asyncio.sleep(1)
    assert sink.got == [b"held"]


@in_virtual_time
async def test_healing_one_node_leaves_other_cuts() -> None:
    net = network()
    net.cut("a", "b")
    net.cut("b", "c")
    net.cut("c", "d", one_way=True)
    net.heal("a")
    assert not net.is_cut("a", "b")
    assert net.is_cut("b", "c")
    assert net.is_cut("c", "d")
    assert not net.is_cut("d", "c")
    net.heal("c", "b")
    assert not net.is_cut("b", "c")
    assert net.is_cut("c", "d")


@in_virtual_time
async def test_a_dial_through_a_cut_times_out_or_succeeds_after_the_healing() -> None:
    net, sink = network(connect_timeout_s=3.0), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    transport = net.transport("client")
    net.cut("client", "server")
    started = loop_now().time()
    with pytest.raises(ConnectionLost, match=r"did not answer within 3\.0 s"):
        await transport.dial(ENDPOINT)
    assert abs(loop_now().time() - started - 3.0) < 1e-6
    loop_now().call_later(2.0, net.heal)
    connection = await transport.dial(ENDPOINT)
    await connection.write(b"through")
    await asyncio.sleep(1)
    assert sink.got == [b"through"]


@in_virtual_time
async def test_a_dial_whose_answer_is_cut_leaves_no_open_stream() -> None:
    net, sink = network(connect_timeout_s=3.0), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    net.cut("server", "client", one_way=True)
    with pytest.raises(ConnectionLost):
        await net.transport("client").dial(ENDPOINT)
    await asyncio.sleep(1)
    assert sink.ends == ["lost"]


@in_virtual_time
async def test_nobody_listening_refuses_at_once() -> None:
    with pytest.raises(ConnectionLost, match="nobody listens"):
        await network().transport("client").dial("nowhere:1")
    assert loop_now().time() < 0.1


@in_virtual_time
async def test_a_reset_breaks_both_ends_and_loses_what_was_on_its_way() -> None:
    net, sink = network(), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    connection = await net.transport("client").dial(ENDPOINT)
    await connection.write(b"arrives")
    await asyncio.sleep(1)
    await connection.write(b"lost")
    assert net.reset("client", "server") == 1
    with pytest.raises(ConnectionLost):
        await connection.read()
    with pytest.raises(ConnectionLost):
        await connection.write(b"more")
    await asyncio.sleep(1)
    assert (sink.got, sink.ends) == ([b"arrives"], ["lost"])
    assert net.reset("client", "server") == 0


@in_virtual_time
async def test_a_reset_between_two_nodes_leaves_others_alone() -> None:
    net, sink = network(), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    one = await net.transport("one").dial(ENDPOINT)
    two = await net.transport("two").dial(ENDPOINT)
    net.reset("one", "server")
    await two.write(b"alive")
    await asyncio.sleep(1)
    assert sink.got == [b"alive"]
    with pytest.raises(ConnectionLost):
        await one.write(b"broken")


@in_virtual_time
async def test_a_full_window_makes_the_writer_wait_for_the_reader() -> None:
    net = network(window_bytes=1000)
    taken: asyncio.Queue[Connection] = asyncio.Queue()

    async def keep(connection: Connection) -> None:
        taken.put_nowait(connection)
        await asyncio.sleep(10_000)

    await net.transport("server").listen(ENDPOINT, keep)
    connection = await net.transport("client").dial(ENDPOINT)
    other = await taken.get()
    written = 0

    async def write() -> None:
        nonlocal written
        for _ in range(10):
            await connection.write(b"x" * 400)
            written += 1

    writing = asyncio.create_task(write())
    await asyncio.sleep(10)
    assert written == 2
    assert await other.read() == b"x" * 400
    await asyncio.sleep(10)
    assert written == 3
    for _ in range(9):
        await other.read()
    await writing


@in_virtual_time
async def test_a_message_larger_than_the_window_passes_alone() -> None:
    net, sink = network(window_bytes=10), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    connection = await net.transport("client").dial(ENDPOINT)
    await connection.write(b"y" * 1000)
    await connection.write(b"z" * 1000)
    assert [len(body) for body in sink.got] == [1000, 1000]


@in_virtual_time
async def test_a_frozen_process_takes_in_a_window_and_reads_it_when_it_wakes() -> None:
    net, sink = network(window_messages=3), Sink()
    node = loop_now().node("server")
    await node.create_task(net.transport(node).listen(ENDPOINT, sink.accept))
    connection = await net.transport("client").dial(ENDPOINT)
    await asyncio.sleep(1)
    node.pause()

    async def write() -> None:
        for number in range(6):
            await connection.write(b"%d" % number)

    writing = asyncio.create_task(write())
    await asyncio.sleep(60)
    assert not writing.done()
    assert sink.got == []
    node.resume()
    await writing
    await asyncio.sleep(1)
    assert sink.got == [b"%d" % number for number in range(6)]


@in_virtual_time
async def test_what_is_accepted_belongs_to_the_node_that_listens() -> None:
    net, sink = network(), Sink()
    node = loop_now().node("server")
    await node.create_task(net.transport(node).listen(ENDPOINT, sink.accept))
    client = loop_now().node("client")
    await client.create_task(net.transport(client).dial(ENDPOINT))
    await asyncio.sleep(1)
    assert sink.nodes == [node]


@in_virtual_time
async def test_killing_a_node_breaks_its_connections_and_frees_its_endpoint() -> None:
    net, sink = network(), Sink()
    node = loop_now().node("server")
    await node.create_task(net.transport(node).listen(ENDPOINT, sink.accept))
    connection = await net.transport("client").dial(ENDPOINT)
    node.kill()
    with pytest.raises(ConnectionLost, match="has ended"):
        await connection.read()
    assert sink.ends == []
    again, second = loop_now().node("server"), Sink()
    await again.create_task(net.transport(again).listen(ENDPOINT, second.accept))
    renewed = await net.transport("client").dial(ENDPOINT)
    await renewed.write(b"to the new one")
    await asyncio.sleep(1)
    assert (sink.got, second.got) == ([], [b"to the new one"])


def test_of_what_a_killed_node_wrote_last_a_prefix_arrives() -> None:
    async def main(seed: int) -> int:
        net, sink = network(seed), Sink()
        await net.transport("server").listen(ENDPOINT, sink.accept)
        node = loop_now().node("client")
        connection = await node.create_task(net.transport(node).dial(ENDPOINT))
        await asyncio.sleep(1)
        for number in range(4):
            await connection.write(b"%d" % number)
        node.kill()
        await asyncio.sleep(1)
        assert sink.ends == ["lost"]
        assert sink.got == [b"%d" % number for number in range(len(sink.got))]
        return len(sink.got)

    assert {run(partial(main, seed), leaks_allowed=True) for seed in range(40)} == {0, 1, 2, 3, 4}


@in_virtual_time
async def test_a_machine_that_loses_power_is_cut_and_killed_and_nobody_is_told() -> None:
    net, sink = network(), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    node = loop_now().node("client")
    await node.create_task(net.transport(node).dial(ENDPOINT))
    await asyncio.sleep(1)
    net.cut("client", "server")
    node.kill()
    await asyncio.sleep(1000)
    assert sink.ends == []


@in_virtual_time
async def test_endpoints_are_given_once() -> None:
    net, sink = network(), Sink()
    transport = net.transport("server")
    first = await transport.listen("host:0", sink.accept)
    second = await transport.listen("host:0", sink.accept)
    assert first.endpoint != second.endpoint
    assert not first.endpoint.endswith(":0")
    with pytest.raises(EndpointInUse):
        await transport.listen(first.endpoint, sink.accept)
    await first.close()
    third = await transport.listen(first.endpoint, sink.accept)
    assert third.endpoint == first.endpoint
    with pytest.raises(ValueError, match="host:port"):
        await transport.listen("nonsense", sink.accept)


@in_virtual_time
async def test_a_listener_that_closes_ends_what_is_open_after_the_grace() -> None:
    net, sink = network(), Sink()
    listener = await net.transport("server").listen(ENDPOINT, sink.accept)
    transport = net.transport("client")
    connection = await transport.dial(ENDPOINT)
    started = loop_now().time()
    await listener.close(grace_s=2.0)
    assert abs(loop_now().time() - started - 2.0) < 0.1
    with pytest.raises(ConnectionLost):
        await connection.read()
    with pytest.raises(ConnectionLost, match="nobody listens"):
        await transport.dial(ENDPOINT)


@in_virtual_time
async def test_a_closed_transport_closes_what_it_dialled_and_dials_no_more() -> None:
    net, sink = network(), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    transport = net.transport("client")
    connection = await transport.dial(ENDPOINT)
    await connection.write(b"last words")
    await transport.close()
    await asyncio.sleep(1)
    assert (sink.got, sink.ends) == ([b"last words"], ["closed"])
    with pytest.raises(ConnectionLost):
        await transport.dial(ENDPOINT)


def test_an_accept_that_fails_fails_the_run() -> None:
    async def main() -> None:
        net = network()

        async def fail(connection: Connection) -> None:
            raise ValueError("a fault of the program")

        await net.transport("server").listen(ENDPOINT, fail)
        await net.transport("client").dial(ENDPOINT)
        await asyncio.sleep(1)

    with pytest.raises(CallbackFailed, match="a fault of the program"):
        run(main)


@in_virtual_time
async def test_delays_can_be_set_between_two_nodes() -> None:
    net, sink = network(), Sink()
    await net.transport("server").listen(ENDPOINT, sink.accept)
    net.delay("client", "server", (2.0, 2.0))
    connection = await net.transport("client").dial(ENDPOINT)
    sent_at = loop_now().time()
    assert sent_at == 4.0
    await connection.write(b"slow")
    await asyncio.sleep(3)
    assert abs(sink.times[0] - sent_at - 2.0) < 1e-9
    net.delay("client", "server", None)
    await connection.write(b"fast")
    await asyncio.sleep(0.01)
    assert sink.got == [b"slow", b"fast"]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    script=st.lists(
        st.sampled_from(["write", "wait", "cut", "cut one way", "heal", "reset", "pause", "resume"]), max_size=25
    ),
)
def test_whatever_befalls_a_connection_its_reader_sees_a_prefix(seed: int, script: list[str]) -> None:
    async def main() -> None:
        net, sink = network(seed, delay_s=(0.0, 0.5)), Sink()
        node = loop_now().node("server")
        await node.create_task(net.transport(node).listen(ENDPOINT, sink.accept))
        connection = await net.transport("client").dial(ENDPOINT)
        sent: list[bytes] = []
        for action in script:
            match action:
                case "write":
                    sent.append(b"%d" % len(sent))
                    try:
                        await connection.write(sent[-1])
                    except ConnectionLost:
                        sent.pop()
                case "wait":
                    await asyncio.sleep(0.2)
                case "cut":
                    net.cut("client", "server")
                case "cut one way":
                    net.cut("client", "server", one_way=True)
                case "heal":
                    net.heal()
                case "reset":
                    net.reset("client", "server")
                case "pause":
                    node.pause()
                case _:
                    node.resume()
        net.heal()
        node.resume()
        await connection.close()
        await asyncio.sleep(10)
        assert sink.got == sent[: len(sink.got)]
        assert len(sink.ends) == 1
        if "reset" not in script:
            assert (sink.got, sink.ends) == (sent, ["closed"])

    run(main, seed=seed)


async def test_it_runs_on_an_ordinary_loop_as_well() -> None:
    net, sink = network(), Sink()
    listener = await net.transport("server").listen("127.0.0.1:0", sink.accept)
    connection = await net.transport("client").dial(listener.endpoint)
    await connection.write(b"real time")
    await connection.close()
    await listener.close(grace_s=1.0)
    assert (sink.got, sink.ends) == ([b"real time"], ["closed"])
