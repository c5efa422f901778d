"""The floor of every remote call: a bare echo over one bidirectional gRPC stream, with coalesced messages.

It has what any such transport needs (a call's number, its length, a future for its answer) and nothing else: no
grains, no sessions, no deadlines. The channel, its options and the event loop are those of the runtime.
`python -m benchmarks.echo [LOOP]` is its server: it prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

# isort: split
from silo.messaging.grpc_transport import CHANNEL_OPTIONS, SERVER_OPTIONS

# isort: split
import grpc
import grpc.aio

from silo.application import Loop, run_on

SERVICE = "silo.benchmarks.Echo"
METHOD = "Connect"
UNARY = "Once"
FRAMES_MAX = 128
"""Calls in one message; the bars are meant beside an echo with this bound. 512 in flight keep both of its ends busy."""
NUMBER = struct.Struct("<q")
HEAD = struct.Struct("<IQ")
_aio: Any = grpc.aio  # the published stubs do not know what is used here
_grpc: Any = grpc


def joined(frames: Iterable[tuple[int, bytes]]) -> bytes:
    """Frames as one message."""
    parts: list[bytes] = []
    for call, payload in frames:
        parts.append(HEAD.pack(len(payload), call))
        parts.append(payload)
    return b"".join(parts)


def parted(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames of a message."""
    at = 0
    while at < len(message):
        length, call = HEAD.unpack_from(message, at)
        at += HEAD.size
        yield call, message[at : at + length]
        at += length


class EchoClient:
    """The caller's end. Calls that are made while a message is being written go out together in the next one."""

    def __init__(self, endpoint: str) -> None:
        self._channel: Any = _aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        self._stream: Any = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        self._unary: Any = self._channel.unary_unary(f"/{SERVICE}/{UNARY}")
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._queue: list[tuple[int, bytes]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._count = 0
        self._tasks = [self._loop.create_task(self._write()), self._loop.create_task(self._read())]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stream.cancel()
        await self._channel.close()

    def call(self, payload: bytes) -> asyncio.Future[bytes]:
        self._count += 1
        future = self._calls[self._count] = self._loop.create_future()
        self._queue.append((self._count, payload))
        if self._waiter is not None:
            self._waiter.set_result(None)
            self._waiter = None
        return future

    async def once(self, payload: bytes) -> bytes:
        """The same as a unary call of its own, which is not coalesced with others."""
        answer: bytes = await self._unary(payload)
        return answer

    async def _write(self) -> None:
        while True:
            if not self._queue:
                waiter = self._waiter = self._loop.create_future()
                await waiter
            batch, self._queue = self._queue[:FRAMES_MAX], self._queue[FRAMES_MAX:]
            await self._stream.write(joined(batch))

    async def _read(self) -> None:
        while (message := await self._stream.read()) is not _aio.EOF:
            for call, payload in parted(message):
                self._calls.pop(call).set_result(payload)


def answered(payload: bytes) -> bytes:
    """What stands for the grain: a number in, the next one out, with whatever came behind it."""
    if len(payload) == NUMBER.size:
        return NUMBER.pack(NUMBER.unpack(payload)[0] + 1)
    return NUMBER.pack(NUMBER.unpack_from(payload)[0] + 1) + payload[NUMBER.size :]


async def _serve_stream(_requests: object, context: Any) -> None:
    while (message := await context.read()) is not _aio.EOF:
        await context.write(joined((call, answered(payload)) for call, payload in parted(message)))


async def _serve_unary(payload: bytes, _context: object) -> bytes:
    return answered(payload)


async def serve() -> int:
    """Serve until standard input ends."""
    server: Any = _aio.server(options=SERVER_OPTIONS)
    handlers = {
        METHOD: _grpc.stream_stream_rpc_method_handler(_serve_stream),
        UNARY: _grpc.unary_unary_rpc_method_handler(_serve_unary),
    }
    server.add_generic_rpc_handlers((_grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    reader = asyncio.StreamReader()
    with contextlib.closing(await standard_input(reader)):
        await reader.read()
    await server.stop(None)
    return 0


async def standard_input(reader: asyncio.StreamReader) -> asyncio.ReadTransport:
    """Have the reader read this process's standard input, until what is returned is closed."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return transport


if __name__ == "__main__":
    sys.exit(run_on(Loop(sys.argv[1]) if len(sys.argv) > 1 else None, serve()))
