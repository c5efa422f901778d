"""xoscar: a pool in each process; actors are created where they are to be."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.peers.contract import CALLER, HERE, HOSTS, ActorPeer, free_endpoint, start_host

xoscar: Any = importlib.import_module("xoscar")
if TYPE_CHECKING:
    Actor = object
else:
    Actor = xoscar.Actor

Place = tuple[str, str]
"""An address, and the name of an actor there."""


class Counter(Actor):
    def __init__(self) -> None:
        self._total = 0
        self._refs: dict[Place, Any] = {}

    async def add(self, amount: int) -> int:
        self._total += amount
        return self._total

    async def echo(self, body: bytes) -> bytes:
        return body

    async def _ref(self, place: Place) -> Any:
        if place not in self._refs:
            self._refs[place] = await xoscar.actor_ref(*place)
        return self._refs[place]

    async def fan(self, leaves: list[Place], amount: int) -> int:
        refs = [await self._ref(leaf) for leaf in leaves]
        totals: list[int] = await asyncio.gather(*(ref.add(amount) for ref in refs))
        return sum(totals)

    async def ring(self, further: list[Place]) -> int:
        if not further:
            return 1
        ref = await self._ref(further[0])
        return 1 + int(await ref.ring(further[1:]))


class Adapter(ActorPeer):
    def __init__(self) -> None:
        super().__init__()
        self._addresses: dict[str, str] = {}
        self._made: dict[Place, Any] = {}

    async def actor(self, place: str, name: str) -> Any:
        where = CALLER if place == HERE else place
        if where not in self._addresses:
            await self._start(where)
        at = (self._addresses[where], name)
        if at not in self._made:
            self._made[at] = await xoscar.create_actor(Counter, address=at[0], uid=name)
        return self._made[at]

    async def _start(self, where: str) -> None:
        address = free_endpoint()
        if where in HOSTS:
            await start_host(self.parts, "xoscar", address)
        else:
            pool = await xoscar.create_actor_pool(address, n_process=0)
            await self.parts.enter_async_context(pool)
        self._addresses[where] = address

    def add(self, actor: Any) -> Awaitable[int]:
        added: Awaitable[int] = actor.add(1)
        return added

    def echo(self, actor: Any, body: bytes) -> Awaitable[bytes]:
        echoed: Awaitable[bytes] = actor.echo(body)
        return echoed

    def _place(self, actor: Any) -> Place:
        return next(place for place, made in self._made.items() if made is actor)

    async def fan(self, hub: Any, leaves: Sequence[Any]) -> Callable[[], Awaitable[int]]:
        places = [self._place(leaf) for leaf in leaves]
        call: Callable[[], Awaitable[int]] = lambda: hub.fan(places, 1)  # noqa: E731 - it has a type
        return call

    async def ring(self, actors: Sequence[Any]) -> Callable[[], Awaitable[int]]:
        further = [self._place(actor) for actor in actors[1:]]
        call: Callable[[], Awaitable[int]] = lambda: actors[0].ring(further)  # noqa: E731 - it has a type
        return call


async def serve(ready: Callable[[], None], address: str) -> None:
    async with await xoscar.create_actor_pool(address, n_process=0) as pool:
        ready()
        await pool.join()
