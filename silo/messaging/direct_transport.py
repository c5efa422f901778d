"""The direct lane: length-prefixed messages over TCP, for silos that have met over gRPC.

A message is four bytes of length, little-endian, and that many bytes. It costs both ends a fraction of what a message
of a gRPC stream does, which is most of what one call at a time takes. Who may talk is settled by the greeting, as on
any connection; this only carries it. Where gRPC runs under TLS so does the lane, by the same certificates.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, cast

from silo.messaging.certificates import Certificates
from silo.messaging.limits import KIB, MIB
from silo.messaging.transport import Connection, ConnectionLost, bind_error, serve

MESSAGE_BYTES_MAX: Final = 64 * MIB
"""The largest message; a batch stays far below it."""
READ_AHEAD_BYTES: Final = MIB
"""Nothing more is read from the socket while messages of so many bytes wait for whoever reads them."""
WRITE_AHEAD_BYTES: Final = MIB
"""A writer waits while the socket has not taken so many bytes."""
JOINED_BYTES_MAX: Final = 64 * KIB
"""A larger message is handed to the socket in two parts, since to join them would copy it."""
CLOSE_TIMEOUT_S: Final = 0.25
"""How long the other end may take to end its side too, before the connection is cut off."""
HANDSHAKE_TIMEOUT_S: Final = 2.0
"""How long whoever has connected may take to agree on TLS; the greeting's own time begins after that."""
_LENGTH: Final = struct.Struct("<I")


class FramedConnection(asyncio.Protocol):
    """One end of a connection, whoever dialled it.

    Args:
        on_made: told once it stands.
        on_lost: told once it is gone.
    """

    def __init__(
        self, on_made: Callable[[FramedConnection], None], on_lost: Callable[[FramedConnection], None]
    ) -> None:
        self._on_made = on_made
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._remote = ""
        self._messages: deque[memoryview] = deque()
        self._waiting_bytes = 0
        """Of messages that nobody has read yet."""
        self._is_paused = False
        self._begun = bytearray()
        """A message of which a part has come."""
        self._has_ended = False
        """The other end will send no more."""
        self._closed = ""
        """Why nothing can be read or written any more."""
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._closing: asyncio.Task[None] | None = None

    @property
    def remote(self) -> str:
        return self._remote

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio
        match transport.get_extra_info("peername"):
            case (host, port, *_):
                self._remote = f"{host}:{port}"
            case _:
                self._remote = "somebody who has gone, or has no address"
        self._transport.set_write_buffer_limits(high=WRITE_AHEAD_BYTES)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return  # what still comes is for nobody
        block: bytes | bytearray = data
        if self._begun:
            self._begun += data
            if len(self._begun) < self._wanted():
                return
            block, self._begun = self._begun, bytearray()
        view, at, size = memoryview(block), 0, len(block)
        while size - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(block, at)
            if length > MESSAGE_BYTES_MAX:
                self._cut_off(f"a message of {length} bytes; {MESSAGE_BYTES_MAX} are the most")
                return
            end = at + _LENGTH.size + length
            if end > size:
                break
            self._messages.append(view[at + _LENGTH.size : end])
            self._waiting_bytes += length
            at = end
        if at < size:
            self._begun += view[at:]
        if self._messages:
            _wake(self._reader)
            if self._waiting_bytes > READ_AHEAD_BYTES and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()

    def _wanted(self) -> int:
        """How many bytes there must be before the next message is whole."""
        if len(self._begun) < _LENGTH.size:
            return _LENGTH.size
        return _LENGTH.size + int(_LENGTH.unpack_from(self._begun)[0])

    def eof_received(self) -> bool:
        self._has_ended = True
        _wake(self._reader)
        # True keeps this end open, unless both are over. Under TLS there is no half of a connection.
        return self._closing is None and self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = self._closed or str(exc or "the connection was lost")
        _wake(self._lost)
        _wake(self._reader)
        _wake(self._room)
        self._on_lost(self)

    def pause_writing(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        _wake(room)

    # What a link calls.

    async def read(self) -> bytes | memoryview | None:
        while not self._messages:
            if self._has_ended and not self._begun and self._closing is None:
                return None
            if self._closed or self._has_ended:
                raise ConnectionLost(f"{self._remote}: {self._closed or 'it ended in the middle of a message'}")
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        if self._is_paused and self._waiting_bytes <= READ_AHEAD_BYTES // 2:
            self._is_paused = False
            if not self._closed:
                self._transport.resume_reading()
        return message

    async def write(self, body: bytes) -> None:
        if self._closed:
            raise ConnectionLost(f"{self._remote}: {self._closed}")
        size = len(body)
        if size <= JOINED_BYTES_MAX:
            self._transport.write(_LENGTH.pack(size) + body)
        else:
            self._transport.write(_LENGTH.pack(size))
            self._transport.write(body)  # not `writelines`, in which asyncio knew no bounds before 3.12.8 and 3.13.1
        if self._room is not None:
            await asyncio.shield(self._room)
            if self._closed:
                raise ConnectionLost(f"{self._remote}: {self._closed}")

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Say that this end is over, and wait until the other is: cut off at once, last words might be lost."""
        self._closed = self._closed or "the connection was closed"
        self._messages.clear()
        _wake(self._reader)
        if not self._lost.done() and not self._transport.is_closing():
            if self._is_paused:
                self._transport.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            if self._has_ended or not self._transport.can_write_eof():
                self._transport.close()  # what was written goes out before
            await asyncio.wait([self._lost], timeout=CLOSE_TIMEOUT_S)
            self._transport.abort()

    def _cut_off(self, because: str) -> None:
        self._closed = because
        self._transport.abort()


class DirectListener:
    """A bound endpoint of the lane. Whoever binds it says so by `opened`."""

    def __init__(self, accept: Callable[[Connection], Awaitable[None]]) -> None:
        self._accept = accept
        self._server: asyncio.Server
        self._open: set[FramedConnection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._endpoint = ""

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def protocol(self) -> FramedConnection:
        """What carries the next connection that comes in."""
        return FramedConnection(self._serve, self._open.discard)

    def opened(self, server: asyncio.Server, endpoint: str) -> None:
        """It listens there."""
        self._server, self._endpoint = server, endpoint

    def _serve(self, connection: FramedConnection) -> None:
        self._open.add(connection)
        task = asyncio.get_running_loop().create_task(serve(self._accept, connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self, grace_s: float = 0.0) -> None:
        self._server.close()
        if self._serving and grace_s > 0:
            await asyncio.wait(self._serving, timeout=grace_s)
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(connection.close() for connection in self._open), return_exceptions=True)


class Dialled:
    """The connections that one transport has dialled, until it is closed."""

    def __init__(self) -> None:
        self._open: set[FramedConnection] = set()
        self._closed = False

    def protocol(self) -> FramedConnection:
        """What carries the next one. Raises ConnectionLost where the transport was closed."""
        if self._closed:
            raise ConnectionLost("this transport was closed")
        return FramedConnection(self._open.add, self._open.discard)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(connection.close() for connection in list(self._open)))


class DirectTransport:
    """Connections over TCP, on the running loop. One transport is for one loop and one process.

    Args:
        certificates: TLS for what is dialled and what comes in; None for plain text.

    Raises:
        InvalidSettings: the certificates cannot be used.
    """

    def __init__(self, certificates: Certificates | None = None) -> None:
        self._to_dial = certificates.to_dial() if certificates is not None else None
        self._to_be_dialled = certificates.to_be_dialled() if certificates is not None else None
        self._dialled = Dialled()

    async def dial(self, endpoint: str) -> Connection:
        connection = self._dialled.protocol()
        host, port = _parted(endpoint)
        tls = self._to_dial
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, host, port, ssl=tls, ssl_handshake_timeout=_handshake_s(tls)
            )
        except OSError as error:
            raise ConnectionLost(f"{endpoint}: {error.strerror or error}") from None
        return connection

    async def listen(self, endpoint: str, accept: Callable[[Connection], Awaitable[None]]) -> DirectListener:
        """Raises EndpointInUse, or EndpointUnusable where it cannot be bound for another reason."""
        listener = DirectListener(accept)
        host, port = _parted(endpoint)
        tls = self._to_be_dialled
        try:
            server = await asyncio.get_running_loop().create_server(
                listener.protocol, host, port, ssl=tls, ssl_handshake_timeout=_handshake_s(tls)
            )
        except OSError as error:
            raise bind_error(endpoint, error) from None
        bound = server.sockets[0].getsockname()[1]
        listener.opened(server, f"{endpoint.rpartition(':')[0]}:{bound}")
        return listener

    async def close(self) -> None:
        await self._dialled.close()


def _handshake_s(tls: ssl.SSLContext | None) -> float | None:
    return None if tls is None else HANDSHAKE_TIMEOUT_S


def _parted(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
