"""The network between the parties of a chaos run: every connection leads through a door here, which can be troubled.

A party is known by its name: `silo-1`, `caller-1`, `redis`. What flows from one party to another is a road. All
connections between two parties share their two roads, whoever of them has dialled.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

READ_BYTES_MAX: Final = 65_536
CONNECT_TIMEOUT_S: Final = 5.0
RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time. Closing then sends RST."""


class Road:
    """What flows one way between two parties."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.answers_to_lose = 0
        """So many pieces more are swallowed, each with its connection."""
        self._open = asyncio.Event()
        self._open.set()

    def block(self) -> None:
        """Let nothing pass until it is cleared."""
        self._open.clear()

    def clear(self) -> None:
        """As good as new."""
        self.delay_s, self.answers_to_lose = 0.0, 0
        self._open.set()

    async def passed(self) -> None:
        """Wait as long as what is on this road takes."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._open.wait()

    def loses(self) -> bool:
        """Whether this piece is to be lost."""
        if self.answers_to_lose > 0:
            self.answers_to_lose -= 1
            return True
        return False


@dataclass(eq=False)
class _Connection:
    """One connection from a dialler to a listener: two streams, one on each road."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter

    def reset(self) -> None:
        for writer in (self.near, self.far):
            held: socket.socket | None = writer.get_extra_info("socket")
            if held is not None:
                with contextlib.suppress(OSError):  # it has ended already
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            writer.transport.abort()


@dataclass
class Network:
    """All roads and doors. Ends what it holds at the end of the block.

    Args:
        who: the name of the party whose socket has this local port and that remote port; None where nobody is known.
    """

    who: Callable[[int, int], str | None]
    answers_lost: int = 0
    strangers: int = 0
    """Connections of nobody known; they were refused."""
    _roads: dict[tuple[str, str], Road] = field(default_factory=dict[tuple[str, str], Road])
    _connections: defaultdict[frozenset[str], set[_Connection]] = field(
        default_factory=lambda: defaultdict[frozenset[str], set[_Connection]](set)
    )
    _servers: list[asyncio.Server] = field(default_factory=list[asyncio.Server])
    _serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    async def door(self, listener: str, host: str, port: int, *, dialler: str | None = None) -> int:
        """Open a way to a party that listens there; returns the door's own port on loopback.

        Args:
            dialler: the only party that uses this door; where there is none, `who` is asked.
        """

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own_port: int = writer.get_extra_info("sockname")[1]
            peer_port: int = writer.get_extra_info("peername")[1]
            from_whom = dialler or self.who(peer_port, own_port)
            if from_whom is None:
                self.strangers += 1
                writer.transport.abort()
                return
            carrying = self._carry(reader, writer, from_whom, listener, (host, port))
            task = asyncio.get_running_loop().create_task(carrying, name=f"{from_whom} to {listener}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    def road(self, source: str, target: str) -> Road:
        """What flows from the one to the other."""
        return self._roads.setdefault((source, target), Road())

    def reset(self, one: str, other: str) -> int:
        """End all connections between two parties with RST; returns how many there were."""
        connections = list(self._connections[frozenset((one, other))])
        for connection in connections:
            connection.reset()
        return len(connections)

    def heal(self) -> None:
        """Clear every road."""
        for road in self._roads.values():
            road.clear()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dialler: str,
        listener: str,
        address: tuple[str, int],
    ) -> None:
        there, back = self.road(dialler, listener), self.road(listener, dialler)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                far_reader, far_writer = await asyncio.open_connection(*address)
        except OSError:  # nobody listens there now; a timeout is one, too
            writer.transport.abort()
            return
        connection = _Connection(writer, far_writer)
        among = self._connections[frozenset((dialler, listener))]
        among.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flow(reader, far_writer, there, connection))
                group.create_task(self._flow(far_reader, writer, back, connection))
        finally:
            among.discard(connection)
            connection.near.transport.abort()
            connection.far.transport.abort()

    async def _flow(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, road: Road, connection: _Connection
    ) -> None:
        """Carry one direction to its end. That end is news too: it waits where the road is blocked."""
        try:
            while piece := await reader.read(READ_BYTES_MAX):
                await road.passed()
                if road.loses():
                    self.answers_lost += 1
                    connection.reset()
                    return
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass  # one end has gone: the other is to hear of it
        await road.passed()
        writer.close()
