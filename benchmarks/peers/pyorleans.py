"""pyorleans: one process. Its remote rows are as its documentation has it: HTTP in front, here raw ASGI and aiohttp.

Grains have plain methods, for which it has threads; a method that is async would cost an event loop for each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from benchmarks.peers.contract import FIRST, HERE, ActorPeer, Unfit, free_endpoint, start_host
from benchmarks.peers.serving import served

pyorleans: Any = importlib.import_module("pyorleans")
if TYPE_CHECKING:
    Grain = object
else:
    Grain = pyorleans.Grain

IDLE_S = 3600
READ_BYTES = 4 * 1024 * 1024
ADD, ECHO = "add", "echo"
logging.disable(logging.WARNING)


class Counter(Grain):
    def __init__(self) -> None:
        super().__init__()
        self._total = 0

    def add(self, amount: int) -> int:
        self._total += amount
        return self._total

    def echo(self, body: bytes) -> bytes:
        return body


@contextlib.asynccontextmanager
async def _silo() -> AsyncGenerator[Any]:
    """The factory of a silo's references."""
    silo = pyorleans.Silo(idle_timeout_seconds=IDLE_S)
    silo.register_grain_class(Counter)
    await silo.start()
    try:
        yield pyorleans.GrainFactory(silo)
    finally:
        await silo.stop()


class Remote:
    """A grain behind HTTP."""

    def __init__(self, session: Any, url: str, key: str) -> None:
        self._session = session
        self._add, self._echo = f"{url}/{ADD}/{key}", f"{url}/{ECHO}/{key}"

    async def add(self, amount: int) -> int:
        return int(await self._post(self._add, str(amount).encode()))

    async def echo(self, body: bytes) -> bytes:
        return await self._post(self._echo, body)

    async def _post(self, url: str, body: bytes) -> bytes:
        async with self._session.post(url, data=body) as response:
            answer: bytes = await response.read()
            if response.status != 200:
                raise RuntimeError(answer.decode(errors="replace"))
            return answer


class Adapter(ActorPeer):
    def __init__(self) -> None:
        super().__init__()
        self._factory: Any = None
        self._session: Any = None
        self._url = ""

    async def actor(self, place: str, name: str) -> Any:
        if place == HERE:
            if self._factory is None:
                self._factory = await self.parts.enter_async_context(_silo())
            return self._factory.get_grain(Counter, name)
        if place != FIRST:
            raise Unfit("it has one process, and nothing that calls another")
        if self._session is None:
            await self._connect()
        return Remote(self._session, self._url, name)

    async def _connect(self) -> None:
        aiohttp: Any = importlib.import_module("aiohttp")
        endpoint = free_endpoint()
        await start_host(self.parts, "pyorleans", endpoint)
        self._url = f"http://{endpoint}"
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=READ_BYTES)
        self._session = await self.parts.enter_async_context(session)

    def add(self, actor: Any) -> Awaitable[int]:
        added: Awaitable[int] = actor.add(1)
        return added

    def echo(self, actor: Any, body: bytes) -> Awaitable[bytes]:
        echoed: Awaitable[bytes] = actor.echo(body)
        return echoed


async def serve(ready: Callable[[], None], endpoint: str) -> None:
    async with _silo() as factory:

        async def application(scope: Any, receive: Any, send: Any) -> None:
            parts: list[bytes] = []
            more = True
            while more:
                message = await receive()
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
            body = b"".join(parts)
            _, method, key = scope["path"].split("/")
            grain = factory.get_grain(Counter, key)
            answer = str(await grain.add(int(body))).encode() if method == ADD else await grain.echo(body)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": answer})

        async with served(application, endpoint):
            ready()
            await asyncio.Event().wait()
