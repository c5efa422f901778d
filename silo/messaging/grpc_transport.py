"""Connections as bidirectional gRPC streams: one channel for each dialled, one server for all that come in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

# isort: split
from silo.logs import get_logger
from silo.messaging.grpc_environment import EXPERIMENTS

# isort: split
import grpc
import grpc.aio

from silo.directory.errors import EndpointUnusable
from silo.messaging.certificates import Certificates
from silo.messaging.limits import MIB
from silo.messaging.transport import Connection, ConnectionLost, bind_error, serve
from silo.wire.packet import packed, unpacked

log = get_logger(__name__)
log.debug("transport.experiments", unless_set_before=EXPERIMENTS)
# The published stubs of grpc.aio are wrong about closing, calling and reading; what comes from there is annotated here.
_aio: Any = grpc.aio
_grpc: Any = grpc
_EOF: Any = _aio.EOF

SERVICE = "silo.wire.v1.Link"
METHOD = "Connect"
MESSAGE_BYTES_MAX = 64 * MIB
"""The largest gRPC message, both ways; a batch stays far below it."""
KEEPALIVE_TIME_MS = 10_000
"""A channel without traffic is probed this often. Links ping more often; this is for other services of the server."""
KEEPALIVE_TIMEOUT_MS = 5_000
"""A probe without an answer for this long ends the channel."""
CLOSE_TIMEOUT_S = 0.25
"""How long a closed stream may take to end in order, before it is cut off."""
STOP_MARGIN_S = 1.0
"""How much longer than its grace the stop of a server may take, before it is left to itself."""

_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_OPTIONS,
    ("grpc.enable_http_proxy", 0),  # what runs between silos is nothing for a proxy of the environment
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, without the back-off of the one before
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # a second silo on the same port must fail, and not share it
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
]


class _DialledConnection:
    """The dialler's end of a stream.

    A socket stays open for as long as its channel is referred to, so once closed nothing here refers to one: neither an
    attribute, nor the traceback of an error that was passed on.
    """

    def __init__(self, endpoint: str, channel: Any, call: Any, forget: Callable[[Connection], None]) -> None:
        self._endpoint = endpoint
        self._channel: Any = channel
        self._call: Any = call
        self._forget = forget
        self._closing: asyncio.Task[None] | None = None

    @property
    def remote(self) -> str:
        return self._endpoint

    async def read(self) -> bytes | memoryview | None:
        call = self._call
        if call is None:
            raise ConnectionLost(f"{self._endpoint}: the connection was closed")
        try:
            body: bytes | memoryview = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            because = _reason(error)
        except asyncio.CancelledError:
            if not _cancelled_by(call):
                raise
            because = "the connection was closed"
        else:
            if body is not _EOF:
                return body
            if await call.code() is grpc.StatusCode.OK:
                return None
            because = await call.details() or str(await call.code())
        raise ConnectionLost(f"{self._endpoint}: {because}")

    async def write(self, body: bytes) -> None:
        call = self._call
        if call is None:
            raise ConnectionLost(f"{self._endpoint}: the connection was closed")
        try:
            await call.write(body)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            because = _reason(error)
        except asyncio.CancelledError:
            if not _cancelled_by(call):
                raise
            because = "the connection was closed"
        else:
            return
        raise ConnectionLost(f"{self._endpoint}: {because}")

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        call, channel = self._call, self._channel
        try:
            if not call.done():
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await call.done_writing()
                        await call.code()
        finally:
            call.cancel()
            await channel.close()
            self._call = self._channel = None
            self._forget(self)


def _cancelled_by(call: Any) -> bool:
    """Whether a CancelledError comes from a call that was cancelled: to those who wait for it, a lost connection."""
    task = asyncio.current_task()
    return bool(call.cancelled()) and task is not None and not task.cancelling()


class _AcceptedConnection:
    """The listener's end of a stream. Closing it ends the stream, whatever still runs on it."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._remote: str = context.peer()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def remote(self) -> str:
        return self._remote

    async def read(self) -> bytes | memoryview | None:
        self._check_open()
        try:
            body: bytes | memoryview = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ConnectionLost(f"{self._remote}: {_reason(error)}") from None
        self._check_open()
        return None if body is _EOF else body

    async def write(self, body: bytes) -> None:
        self._check_open()
        try:
            await self._context.write(body)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ConnectionLost(f"{self._remote}: {_reason(error)}") from None

    def _check_open(self) -> None:
        if self.closed.done():
            raise ConnectionLost(f"{self._remote}: the connection was closed")

    async def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or str(error.code())
    return str(error) or type(error).__name__


class GrpcListener:
    """A bound gRPC server."""

    def __init__(self, accept: Callable[[Connection], Awaitable[None]]) -> None:
        self._accept = accept
        self._server: Any = _aio.server(options=SERVER_OPTIONS)
        self._serving: set[asyncio.Task[None]] = set()
        self._endpoint = ""

    @property
    def endpoint(self) -> str:
        return self._endpoint

    async def start(
        self,
        endpoint: str,
        services: Sequence[Callable[[grpc.aio.Server], None]],
        credentials: grpc.ServerCredentials | None,
    ) -> None:
        """Bind and serve. Raises EndpointInUse, or EndpointUnusable where it cannot be bound for another reason."""
        link = _grpc.stream_stream_rpc_method_handler(
            self._connect, request_deserializer=unpacked, response_serializer=packed
        )
        self._server.add_generic_rpc_handlers((_grpc.method_handlers_generic_handler(SERVICE, {METHOD: link}),))
        for add in services:
            add(self._server)
        try:
            _prove_usable(endpoint)
            if credentials is None:
                port = self._server.add_insecure_port(endpoint)
            else:
                port = self._server.add_secure_port(endpoint, credentials)
        except EndpointUnusable:
            await self._server.stop(None)
            raise
        except RuntimeError as error:
            await self._server.stop(None)
            raise EndpointUnusable(errno.EINVAL, f"cannot listen at {endpoint}: {error}") from None
        await self._server.start()
        self._endpoint = f"{endpoint.rpartition(':')[0]}:{port}"

    async def _connect(self, _requests: object, context: Any) -> None:
        """Serve one stream: it ends when `accept` returns, or when the connection is closed."""
        connection = _AcceptedConnection(context)
        await context.send_initial_metadata(())
        task = asyncio.get_running_loop().create_task(serve(self._accept, connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            await asyncio.wait({task, connection.closed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The stream is gone. The task is told, and not waited for: the server counts on this handler to end.
            connection.closed.cancel()
            task.cancel()
            raise

    async def close(self, grace_s: float = 0.0) -> None:
        stopping = asyncio.get_running_loop().create_task(self._server.stop(grace_s or None))
        done, _ = await asyncio.wait({stopping}, timeout=grace_s + STOP_MARGIN_S)
        if not done:
            log.warning("transport.stop_unfinished", endpoint=self._endpoint, after_s=grace_s + STOP_MARGIN_S)
            stopping.cancel()
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)


def _prove_usable(endpoint: str) -> None:
    """Ask the operating system first: the gRPC core does not pass on what it says, and complains on its own account.

    Raises EndpointInUse or EndpointUnusable where none of the addresses that the endpoint stands for can be had.
    """
    host, _, port = endpoint.rpartition(":")
    refused: OSError | None = None
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        addresses, refused = [], error
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gRPC core does
                probe.bind(address)
        except OSError as error:
            refused = error
        else:
            return
    if refused is not None:
        raise bind_error(endpoint, refused)


def open_channel(endpoint: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel to a silo; under TLS where there are credentials."""
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)


class GrpcTransport:
    """Streams over gRPC, on the running loop. One transport is for one loop and one process.

    Args:
        services: each is called with the server before it starts, to add what else it shall serve.
        certificates: TLS for what is dialled and what comes in; None for plain text.

    Raises:
        InvalidSettings: the certificates cannot be used.
    """

    def __init__(
        self,
        services: Sequence[Callable[[grpc.aio.Server], None]] = (),
        certificates: Certificates | None = None,
    ) -> None:
        self._services = services
        self._channel_credentials = certificates.grpc_channel() if certificates is not None else None
        self._server_credentials = certificates.grpc_server() if certificates is not None else None
        self._open: dict[Connection, None] = {}
        self._closed = False

    async def dial(self, endpoint: str) -> Connection:
        if self._closed:
            raise ConnectionLost("this transport was closed")
        channel: Any = open_channel(endpoint, self._channel_credentials)
        call: Any = channel.stream_stream(
            f"/{SERVICE}/{METHOD}",
            request_serializer=packed,
            response_deserializer=unpacked,
        )()
        try:
            await call.initial_metadata()
            if call.done() and await call.code() is not grpc.StatusCode.OK:
                raise ConnectionLost(f"{endpoint}: {await call.details() or await call.code()}")
        except BaseException:
            call.cancel()
            await channel.close()
            raise
        connection = _DialledConnection(endpoint, channel, call, lambda closed: self._open.pop(closed, None))
        self._open[connection] = None
        return connection

    async def listen(self, endpoint: str, accept: Callable[[Connection], Awaitable[None]]) -> GrpcListener:
        listener = GrpcListener(accept)
        await listener.start(endpoint, self._services, self._server_credentials)
        return listener

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(connection.close() for connection in list(self._open)))
