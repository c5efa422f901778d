"""A TCP proxy in front of a Redis server that delays answers or loses them after the server has done its work."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

READ_BYTES_MAX = 65_536


class RedisProxy:
    """Listens on a free loopback port and passes bytes to the server of a URL, as long as it is entered.

    `delay_s` holds back every answer; `lose_answers` closes that many connections in place of passing an answer on;
    with `holds_answers` set, what the server says goes nowhere, and the connection stays open.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        self.holds_answers = False
        self.lose_answers = 0
        self.answers_lost = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
            with contextlib.closing(writer), contextlib.closing(upstream_writer):
                forwards = asyncio.create_task(self._requests(reader, upstream_writer))
                try:
                    await self._answers(upstream_reader, writer)
                finally:
                    forwards.cancel()
                    await asyncio.gather(forwards, return_exceptions=True)
        except (asyncio.CancelledError, ConnectionError):
            pass  # one end has gone, or the test is over
        finally:
            self._connections.discard(task)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await reader.read(READ_BYTES_MAX):
            writer.write(asked)
        writer.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answer := await reader.read(READ_BYTES_MAX):
            if self.lose_answers > 0:
                self.lose_answers -= 1
                self.answers_lost += 1
                return
            if self.holds_answers:
                continue
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(answer)
