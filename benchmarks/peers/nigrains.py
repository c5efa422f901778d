"""nigrains: every caller is a member; grains are where its hash ring has them, so keys are sought that it has in place.

Versions before 0.10 have one process. Between processes arguments are pickled, since its JSON takes no bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.peers.contract import CALLER, HERE, HOSTS, ActorPeer, Unfit, free_endpoint, start_host
from benchmarks.peers.serving import served

nigrains: Any = importlib.import_module("nigrains")
if TYPE_CHECKING:
    Grain = object
else:
    Grain = nigrains.Grain

GRAIN_TYPE = "counter"
SEPARATOR = " "
_runtimes: list[Any] = []
"""The one that is a member, for the grains of this process to call others by."""


class Codec:
    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value, 5)

    def decode(self, body: bytes) -> Any:
        return pickle.loads(body)  # noqa: S301 - of processes of our own


class Counter(Grain):
    grain_type = GRAIN_TYPE
    tolerates_double_activation = True

    async def activate(self) -> None:
        self._total = 0

    async def add(self, amount: int) -> int:
        self._total += amount
        return self._total

    async def echo(self, body: bytes) -> bytes:
        return body

    async def fan(self, keys: list[str], amount: int) -> int:
        refs = [_runtimes[0].reference(Counter, key) for key in keys]
        totals: list[int] = await asyncio.gather(*(ref.add(amount) for ref in refs))
        return sum(totals)

    async def ring(self, keys: list[str]) -> int:
        return 1 + int(await _runtimes[0].reference(Counter, keys[0]).ring(keys[1:])) if keys else 1


class Keyed(NamedTuple):
    """A reference, and its key."""

    ref: Any
    key: str


@contextlib.asynccontextmanager
async def _member(own: str, members: Sequence[str]) -> AsyncGenerator[tuple[Any, Any]]:
    """A runtime with its cluster, which is served at its own address."""
    http: Any = importlib.import_module("nigrains.http")
    membership = nigrains.StaticMembership(_url(own), [_url(member) for member in members])
    cluster = nigrains.Cluster(membership, http.HttpTransport(codec=Codec()))
    runtime = nigrains.Runtime(cluster=cluster)
    runtime.register(Counter)
    _runtimes[:] = [runtime]
    async with runtime, served(http.asgi_app(runtime, codec=Codec()), own):
        yield runtime, cluster


def _url(endpoint: str) -> str:
    return f"http://{endpoint}"


class Adapter(ActorPeer):
    def __init__(self) -> None:
        super().__init__()
        self._alone: Any = None
        self._runtime: Any = None
        self._cluster: Any = None
        self._endpoints: dict[str, str] = {}

    async def actor(self, place: str, name: str) -> Keyed:
        if place == HERE:
            if self._alone is None:
                self._alone = await self.parts.enter_async_context(_alone())
            return Keyed(self._alone.reference(Counter, name), name)
        if self._runtime is None:
            self._runtime, self._cluster = await self._joined()
        key = self._key(place, name)
        return Keyed(self._runtime.reference(Counter, key), key)

    async def _joined(self) -> tuple[Any, Any]:
        if not hasattr(nigrains, "Cluster"):
            raise Unfit("before 0.10, which wants Python 3.14, it has no transport")
        self._endpoints = {place: free_endpoint() for place in (CALLER, *HOSTS)}
        for host in HOSTS:
            await start_host(self.parts, "nigrains", self._endpoints[host], *self._endpoints.values())
        member = _member(self._endpoints[CALLER], list(self._endpoints.values()))
        return await self.parts.enter_async_context(member)

    def _key(self, place: str, name: str) -> str:
        grain_id: Any = importlib.import_module("nigrains.grain").GrainId
        wanted = _url(self._endpoints[place])
        keys = (f"{name}{SEPARATOR}{number}" for number in itertools.count())
        return next(key for key in keys if self._cluster.owner_of(grain_id(GRAIN_TYPE, key)) == wanted)

    def add(self, actor: Keyed) -> Awaitable[int]:
        added: Awaitable[int] = actor.ref.add(1)
        return added

    def echo(self, actor: Keyed, body: bytes) -> Awaitable[bytes]:
        echoed: Awaitable[bytes] = actor.ref.echo(body)
        return echoed

    async def fan(self, hub: Keyed, leaves: Sequence[Keyed]) -> Callable[[], Awaitable[int]]:
        keys = [leaf.key for leaf in leaves]
        call: Callable[[], Awaitable[int]] = lambda: hub.ref.fan(keys, 1)  # noqa: E731 - it has a type
        return call

    async def ring(self, actors: Sequence[Keyed]) -> Callable[[], Awaitable[int]]:
        keys = [actor.key for actor in actors[1:]]
        call: Callable[[], Awaitable[int]] = lambda: actors[0].ref.ring(keys)  # noqa: E731 - it has a type
        return call


@contextlib.asynccontextmanager
async def _alone() -> AsyncGenerator[Any]:
    runtime = nigrains.Runtime()
    runtime.register(Counter)
    async with runtime:
        yield runtime


async def serve(ready: Callable[[], None], own: str, *members: str) -> None:
    async with _member(own, members):
        ready()
        await asyncio.Event().wait()
