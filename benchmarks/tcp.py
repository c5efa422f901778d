"""The floor of any transport: a bare echo over one TCP connection on the runtime's event loop, with coalesced frames.

Frames are those of the gRPC echo. What is called within one turn of the loop goes out in one write, and what arrives at
once is answered in one. `python -m benchmarks.tcp` is its server: it prints its port, and ends when its standard input
does.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import sys
from typing import Any, cast

from benchmarks.echo import HEAD, answered, joined, standard_input
from silo.application import run_on


class _Frames(asyncio.Protocol, abc.ABC):
    """Parts what arrives into frames, whole ones as they come; `on_frames` has them."""

    def __init__(self) -> None:
        self._rest = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        message = self._rest + data if self._rest else data
        at, frames = 0, list[tuple[int, bytes]]()
        while len(message) - at >= HEAD.size:
            length, call = HEAD.unpack_from(message, at)
            end = at + HEAD.size + length
            if end > len(message):
                break
            frames.append((call, message[at + HEAD.size : end]))
            at = end
        self._rest = message[at:]
        if frames:
            self.on_frames(frames)

    @abc.abstractmethod
    def on_frames(self, frames: list[tuple[int, bytes]]) -> None:
        """Take in the frames that have come whole, in order."""


class _Server(_Frames):
    def on_frames(self, frames: list[tuple[int, bytes]]) -> None:
        self.transport.write(joined((call, answered(payload)) for call, payload in frames))


class TcpEcho(_Frames):
    """The caller's end; made by `connect`."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._queue: list[tuple[int, bytes]] = []
        self._count = 0

    @classmethod
    async def connect(cls, port: int) -> TcpEcho:
        _, echo = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return echo

    def call(self, payload: bytes) -> asyncio.Future[bytes]:
        self._count += 1
        future = self._calls[self._count] = self._loop.create_future()
        if not self._queue:
            self._loop.call_soon(self._write)
        self._queue.append((self._count, payload))
        return future

    def _write(self) -> None:
        queue, self._queue = self._queue, []
        self.transport.write(joined(queue))

    def on_frames(self, frames: list[tuple[int, bytes]]) -> None:
        for call, payload in frames:
            self._calls.pop(call).set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._calls.values():
            future.set_exception(exc or ConnectionResetError("the TCP echo has closed its connection"))
        self._calls.clear()

    def close(self) -> None:
        self.transport.abort()


async def serve() -> int:
    """Serve until standard input ends."""
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    reader = asyncio.StreamReader()
    with contextlib.closing(await standard_input(reader)):
        await reader.read()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_on(None, serve()))
