"""casty: the caller is a member of the cluster, as a silo is, and actors are pinned to members."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from benchmarks.peers.contract import CALLER, HERE, HOSTS, ActorPeer, free_endpoint, start_host

T = TypeVar("T")
M = TypeVar("M")
casty: Any = importlib.import_module("casty")
if TYPE_CHECKING:

    class Askable(Generic[T]):
        reply_to: Any

    class Context(Generic[T, M]):
        inbox: Any
        system: Any
else:
    Askable, Context = casty.Askable, casty.Context

IDLE = timedelta(hours=1)
logging.getLogger("casty").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Add(Askable[int]):
    amount: int


@dataclass(frozen=True)
class Echo(Askable[bytes]):
    body: bytes


@dataclass(frozen=True)
class Fan(Askable[int]):
    amount: int
    leaves: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Ring(Askable[int]):
    further: tuple[tuple[str, str], ...]


async def _counter(ctx: Context[int, Add | Echo | Fan | Ring]) -> None:
    total = 0
    async for message in ctx.inbox:
        match message:
            case Add(amount):
                total += amount
                message.reply_to.tell(total)
            case Echo(body):
                message.reply_to.tell(body)
            case Fan(amount, leaves):
                refs = [ctx.system.ref(pinned, key, at=address) for key, address in leaves]
                message.reply_to.tell(sum(await asyncio.gather(*(ref.ask(Add(amount)) for ref in refs))))
            case Ring(()):
                message.reply_to.tell(1)
            case Ring(((key, address), *_)):
                rest = message.further[1:]
                message.reply_to.tell(1 + await ctx.system.ref(pinned, key, at=address).ask(Ring(rest)))
            case _:
                raise TypeError(f"no counter takes {message!r}")


async def pinned(ctx: Context[int, Add | Echo | Fan | Ring]) -> None:
    """Stays on the member that it is addressed at."""
    await _counter(ctx)


async def placed(ctx: Context[int, Add | Echo | Fan | Ring]) -> None:
    """For a system that has one member."""
    await _counter(ctx)


if not TYPE_CHECKING:
    pinned = casty.actor(initial=0, pinned=True, idle_after=IDLE)(pinned)
    placed = casty.actor(initial=0, replicas=1, idle_after=IDLE)(placed)


class Actor(NamedTuple):
    """A reference, and what others make one of."""

    ref: Any
    place: tuple[str, str]


class Adapter(ActorPeer):
    def __init__(self) -> None:
        super().__init__()
        self._alone: Any = None
        self._member: Any = None
        self._addresses: dict[str, str] = {}

    async def actor(self, place: str, name: str) -> Actor:
        if place == HERE:
            if self._alone is None:
                self._alone = await self.parts.enter_async_context(casty.ActorSystem())
            return Actor(self._alone.ref(placed, name), ("", ""))
        if self._member is None:
            self._member = await self._joined()
        address = self._addresses[place]
        return Actor(self._member.ref(pinned, name, at=address), (name, address))

    async def _joined(self) -> Any:
        for host in HOSTS:
            address = free_endpoint()
            await start_host(self.parts, "casty", address, *self._addresses.values())
            self._addresses[host] = address
        self._addresses[CALLER] = own = free_endpoint()
        seeds = tuple(self._addresses[host] for host in HOSTS)
        cluster = casty.Cluster(bind=own, seeds=seeds)
        member = await self.parts.enter_async_context(casty.ActorSystem(cluster=cluster))
        for address in seeds:
            await _met(member.ref(pinned, "met", at=address))
        return member

    def add(self, actor: Actor) -> Awaitable[int]:
        asked: Awaitable[int] = actor.ref.ask(Add(1))
        return asked

    def echo(self, actor: Actor, body: bytes) -> Awaitable[bytes]:
        asked: Awaitable[bytes] = actor.ref.ask(Echo(body))
        return asked

    async def fan(self, hub: Actor, leaves: Sequence[Actor]) -> Callable[[], Awaitable[int]]:
        message = Fan(1, tuple(leaf.place for leaf in leaves))
        call: Callable[[], Awaitable[int]] = lambda: hub.ref.ask(message)  # noqa: E731 - it has a type
        return call

    async def ring(self, actors: Sequence[Actor]) -> Callable[[], Awaitable[int]]:
        message = Ring(tuple(actor.place for actor in actors[1:]))
        call: Callable[[], Awaitable[int]] = lambda: actors[0].ref.ask(message)  # noqa: E731 - it has a type
        return call


MEETING_TRIES, MEETING_PAUSE_S = 50, 0.1


async def _met(ref: Any) -> None:
    """Members know each other some time after they have started."""
    for _ in range(MEETING_TRIES):
        try:
            await ref.ask(Add(1))
        except casty.Unavailable:
            await asyncio.sleep(MEETING_PAUSE_S)
        else:
            return
    await ref.ask(Add(1))


async def serve(ready: Callable[[], None], address: str, *seeds: str) -> None:
    async with casty.ActorSystem(cluster=casty.Cluster(bind=address, seeds=seeds)):
        ready()
        await asyncio.Event().wait()
