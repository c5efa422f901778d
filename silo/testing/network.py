"""A network in memory: connections between simulated processes that delay, stall, break and fill up as TCP's do.

What can go wrong on a stream is what goes wrong here. Messages of one direction arrive in order and whole, or not at
all: a cut holds them until it is healed, and a connection that breaks loses the last of what was on its way. Loss,
repetition and reordering happen above, when a broken connection is replaced by the next.

Works on any event loop; under virtual time a run repeats. The network itself belongs to no node: like a kernel it takes
in what is sent to a frozen process, until the window is full and the writer waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable

from silo.directory.errors import EndpointInUse
from silo.messaging.transport import Connection, ConnectionLost
from silo.testing.nodes import Node
from silo.testing.wires import MemoryConnection, Reset, Wires

DELAY_S = (0.000_1, 0.001)
"""The range of a message's travelling time, in seconds, where no other was set."""
WINDOW_BYTES = 256 * 1024
"""How many bytes one direction of a connection takes in before its writer waits for its reader."""
WINDOW_MESSAGES = 64
"""How many messages it takes in before that."""
CONNECT_TIMEOUT_S = 5.0
"""How long a dial waits for an answer to come through a cut, in seconds."""
FIRST_PORT = 20_000
"""The first port that is given to whoever asks for port 0."""


class MemoryNetwork(Wires):
    """All the wires between the nodes, and what can befall them. Nodes are known by name.

    Args:
        rng: draws travelling times, and how much of what was on its way survives a broken connection.
        delay_s: the range of travelling times for each message.
        window_bytes: how much one direction takes in before its writer waits.
        window_messages: likewise, in messages.
        connect_timeout_s: how long a dial waits when nothing comes through.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        delay_s: tuple[float, float] = DELAY_S,
        window_bytes: int = WINDOW_BYTES,
        window_messages: int = WINDOW_MESSAGES,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        super().__init__(rng, delay_s, window_bytes, window_messages)
        self.connect_timeout_s = connect_timeout_s
        self._listeners: dict[str, MemoryListener] = {}
        self._port = FIRST_PORT

    def transport(self, node: Node | str, way: str = "") -> MemoryTransport:
        """The network as one node reaches it. A Node's sockets close when it is killed; a mere name is never killed.

        Args:
            way: by which name what is dialled here can be troubled apart from the rest.
        """
        if isinstance(node, str):
            return MemoryTransport(self, node, way)
        transport = MemoryTransport(self, node.name, way)
        node.on_kill(transport.sever)
        return transport

    def bind(self, endpoint: str, listener: MemoryListener) -> str:
        """Give the endpoint to the listener, and return it with its port."""
        host, colon, port = endpoint.rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"{endpoint!r} is not an endpoint of the form host:port")
        if port == "0":
            while f"{host}:{self._port}" in self._listeners:
                self._port += 1
            endpoint = f"{host}:{self._port}"
            self._port += 1
        if endpoint in self._listeners:
            raise EndpointInUse(f"{endpoint} is listened on already, by {self._listeners[endpoint].node}")
        self._listeners[endpoint] = listener
        return endpoint

    def unbind(self, listener: MemoryListener) -> None:
        """Take the endpoint back."""
        if self._listeners.get(listener.endpoint) is listener:
            del self._listeners[listener.endpoint]

    def listener(self, endpoint: str) -> MemoryListener | None:
        """Who listens there."""
        return self._listeners.get(endpoint)


class MemoryListener:
    """A bound endpoint of the network; a `Listener`."""

    def __init__(
        self, network: MemoryNetwork, node: str, endpoint: str, accept: Callable[[Connection], Awaitable[None]]
    ) -> None:
        self.node = node
        self._network = network
        self._accept = accept
        self._context = contextvars.copy_context()
        self._tasks: dict[asyncio.Task[None], MemoryConnection] = {}
        self._endpoint = network.bind(endpoint, self)

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def take(self, connection: MemoryConnection) -> None:
        """Serve a connection that came in, as part of the node that listens."""
        task = asyncio.get_running_loop().create_task(self._serve(connection), context=self._context.copy())
        self._tasks[task] = connection
        task.add_done_callback(self._ended, context=self._context)

    async def _serve(self, connection: MemoryConnection) -> None:
        try:
            await self._accept(connection)
        except BaseException:
            connection.finish(Reset("it was broken off at the other end"))
            raise
        await connection.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and not isinstance(task.exception(), ConnectionLost):
            task.result()  # an `accept` that fails is a fault of the program: the loop is told

    async def close(self, grace_s: float = 0.0) -> None:
        self._network.unbind(self)
        tasks = list(self._tasks)
        if tasks and grace_s > 0:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def die(self) -> None:
        """The node was killed: what it had accepted breaks."""
        self._network.unbind(self)
        for connection in self._tasks.values():
            connection.die()


class MemoryTransport:
    """The network as one node reaches it; a `Transport`."""

    def __init__(self, network: MemoryNetwork, node: str, way: str) -> None:
        self._network = network
        self._node = node
        self._way = way
        self._dialled: dict[MemoryConnection, None] = {}
        self._listeners: list[MemoryListener] = []
        self._closed = False

    async def dial(self, endpoint: str) -> MemoryConnection:
        self._check_open()
        network = self._network
        try:
            async with asyncio.timeout(network.connect_timeout_s):
                connection = await self._dial(endpoint)
        except TimeoutError:
            raise ConnectionLost(f"{endpoint} did not answer within {network.connect_timeout_s} s") from None
        self._check_open()
        return connection

    async def _dial(self, endpoint: str) -> MemoryConnection:
        network = self._network
        known = network.listener(endpoint)
        there = endpoint if known is None else known.node
        await network.cross(self._node, there, self._way)
        listener = network.listener(endpoint)
        if listener is None:
            await network.cross(there, self._node, self._way)
            raise ConnectionLost(f"nobody listens at {endpoint}")
        connection, other = network.connect(self._node, listener.node, endpoint, self._way)
        self._dialled = {dialled: None for dialled in self._dialled if not dialled.is_over}
        self._dialled[connection] = None
        listener.take(other)
        try:
            await network.cross(listener.node, self._node, self._way)
        except BaseException:
            connection.finish(Reset("the dialler gave up"))
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost("this transport was closed")

    async def listen(self, endpoint: str, accept: Callable[[Connection], Awaitable[None]]) -> MemoryListener:
        listener = MemoryListener(self._network, self._node, endpoint, accept)
        self._listeners.append(listener)
        return listener

    async def close(self) -> None:
        self._closed = True
        for connection in self._dialled:
            await connection.close()
        self._dialled.clear()

    def sever(self) -> None:
        """The node was killed: its endpoints are free, and its connections break as soon as the news has travelled."""
        self._closed = True
        for listener in self._listeners:
            listener.die()
        for connection in self._dialled:
            connection.die()
