"""The network between the parties of a chaos run: every connection leads through a door here, which can be troubled.

A party is known by its name: `silo-1`, `caller-1`, `redis`. What flows from one party to another is a road. All
connections between two parties share their two roads, whoever of them has dialled. Who dials a silo says so in its
first words, and those are held already where the road is blocked; management greets nobody, and is never troubled.

Silos have two doors each, one for streams and one for the direct lane. What befalls a road befalls both; how much of it
does is counted for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter as Tally
from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

READ_BYTES_MAX: Final = 65_536
CONNECT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0
"""How long the last words on a connection may take to be written."""
GREETING_BYTES_MAX: Final = 16_384
"""Who has not said by then who it is belongs to nobody."""
STREAM: Final = "stream"
LANE: Final = "direct lane"
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

    @property
    def is_clear(self) -> bool:
        """Whether what is on it passes at once."""
        return not self.delay_s and self._open.is_set()

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

    listener: str
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    way: str
    there: Road = field(default_factory=Road)
    back: Road = field(default_factory=Road)
    dialler: str | None = None
    greeting: bytes = b""
    """What the dialler has said, as long as it is not known who it is."""

    def reset(self) -> None:
        for writer in (self.near, self.far):
            held: socket.socket | None = writer.get_extra_info("socket")
            if held is not None:
                with contextlib.suppress(OSError):  # it has ended already
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            writer.transport.abort()


class Network:
    """All roads and doors. Ends what it holds at the end of the block."""

    def __init__(self) -> None:
        self.answers_lost = 0
        self.unnamed = 0
        """Connections whose dialler never said who it was."""
        self.carried: Tally[str] = Tally()
        """Pieces that were carried, by the way that they went."""
        self.held: Tally[str] = Tally()
        """Those of them that had to wait, because their road was slow or blocked."""
        self.broken: Tally[str] = Tally()
        """Connections that were reset, or lost an answer and were."""
        self._tokens: dict[bytes, str] = {}
        self._roads: dict[tuple[str, str], Road] = {}
        self._connections: defaultdict[frozenset[str], set[_Connection]] = defaultdict(set)
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()

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

    def know(self, party: str, token: str) -> None:
        """Whoever says this at the beginning of a connection is that party."""
        self._tokens[token.encode()] = party

    async def door(self, listener: str, host: str, port: int, *, dialler: str | None = None, way: str = STREAM) -> int:
        """Open a way to a party that listens there; returns the door's own port on loopback.

        Args:
            way: under which name what it carries is counted.
            dialler: the only party that uses this door; where there is none, diallers say who they are.
        """

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            carrying = self._carry(reader, writer, dialler, listener, (host, port), way)
            task = asyncio.get_running_loop().create_task(carrying, name=f"{dialler or 'somebody'} to {listener}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(lambda _: writer.transport.abort())  # even where it is cancelled before it begins

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
            self.broken[connection.way] += 1
        return len(connections)

    def count(self, party: str) -> int:
        """How many connections of this party there are now."""
        return sum(len(connections) for ends, connections in self._connections.items() if party in ends)

    def heal(self) -> None:
        """Clear every road."""
        for road in self._roads.values():
            road.clear()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dialler: str | None,
        listener: str,
        address: tuple[str, int],
        way: str,
    ) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                far_reader, far_writer = await asyncio.open_connection(*address)
        except OSError:  # nobody listens there now; a timeout is one, too
            return
        connection = _Connection(listener, writer, far_writer, way)
        if dialler is not None:
            self._name(connection, dialler)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flow_there(reader, connection))
                group.create_task(self._flow_back(far_reader, connection))
            with contextlib.suppress(OSError):  # it was reset, or one end takes nothing more
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await writer.wait_closed()
                    await far_writer.wait_closed()
        finally:
            if connection.dialler is None:
                self.unnamed += 1
            else:
                self._connections[frozenset((connection.dialler, listener))].discard(connection)
            far_writer.transport.abort()

    def _name(self, connection: _Connection, dialler: str) -> None:
        connection.dialler, listener = dialler, connection.listener
        connection.there, connection.back = self.road(dialler, listener), self.road(listener, dialler)
        self._connections[frozenset((dialler, listener))].add(connection)

    def _greeted(self, connection: _Connection, piece: bytes) -> None:
        """Look for who it is in the dialler's first words."""
        if connection.dialler is not None or len(connection.greeting) > GREETING_BYTES_MAX:
            return
        connection.greeting += piece
        for token, party in self._tokens.items():
            if party != connection.listener and token in connection.greeting:
                self._name(connection, party)
                return

    async def _flow_there(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        with contextlib.suppress(ConnectionError):  # one end has gone: the other is to hear of it
            while piece := await reader.read(READ_BYTES_MAX):
                self._greeted(connection, piece)
                if not await self._pass(piece, connection.there, connection.far, connection):
                    return
        await connection.there.passed()
        connection.far.close()

    async def _flow_back(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(READ_BYTES_MAX):
                if not await self._pass(piece, connection.back, connection.near, connection):
                    return
        await connection.back.passed()  # that it has ended is news too, and waits where the road is blocked
        connection.near.close()

    async def _pass(self, piece: bytes, road: Road, writer: asyncio.StreamWriter, connection: _Connection) -> bool:
        """Carry one piece; False where it was lost, and the connection with it."""
        self.carried[connection.way] += 1
        if not road.is_clear:
            self.held[connection.way] += 1
        await road.passed()
        if writer.is_closing():
            return False
        if road.loses():
            self.answers_lost += 1
            self.broken[connection.way] += 1
            connection.reset()
            return False
        writer.write(piece)
        await writer.drain()
        return True
