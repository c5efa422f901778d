"""Clusters of a few silos and clients within one process, on two stands.

`memory` is a network, a directory and a membership table in memory under virtual time; `real` is gRPC on loopback and a
Redis or Valkey server. A test that uses the fixture `cluster` says nothing of either.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from silo.activation.activation import Activation, State
from silo.client import Client
from silo.directory.addresses import Entry
from silo.directory.lease_post import LeasePost
from silo.directory.lease_settings import LeaseSettings
from silo.directory.loop_membership import LoopMembership
from silo.directory.memory_directory import DirectoryRows, MemoryDirectory
from silo.directory.memory_membership import MemoryMembershipTable
from silo.host import Silo
from silo.reference import grain_id
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.settings import SiloSettings
from silo.surroundings import Surroundings, real_surroundings
from silo.testing.network import MemoryNetwork
from tests.cluster.stage import LIMIT_S

LEASE = LeaseSettings(lease_s=5.0)
DIRECTORY_DELAY_S = 0.001
LOOK_EVERY_S = 0.005
"""How often a test looks for what tells nobody when it changes."""

G = TypeVar("G")


class Stand(Protocol):
    """What silos and clients stand on."""

    def settings(self, name: str, **settings: Any) -> SiloSettings: ...

    def surroundings(self, settings: SiloSettings) -> Surroundings: ...

    def connect(self, gateways: list[str], **options: Any) -> Client: ...

    def connect_to(self, gateway: str, **options: Any) -> Client: ...


class MemoryStand:
    """Everything in memory; for a loop under virtual time, or any other."""

    def __init__(self, seed: int = 1) -> None:
        self.rows = DirectoryRows()
        self.directory_calls: list[str] = []
        """What the directory was asked, in order."""
        self._rng = random.Random(seed)
        self._network = MemoryNetwork(random.Random(self._rng.random()))
        self._table = MemoryMembershipTable()
        self._post = LeasePost()
        self._incarnations = itertools.count(1)
        self._clients = itertools.count(1)

    def settings(self, name: str, **settings: Any) -> SiloSettings:
        return SiloSettings(name=name, listen=f"{name}:7000", insecure=True, lease=LEASE, **settings)

    def surroundings(self, settings: SiloSettings) -> Surroundings:
        return Surroundings(
            open_transport=lambda _: self._network.transport(str(settings.name)),
            open_directory=lambda: MemoryDirectory(self.rows, before=self._on_the_way),
            open_membership=lambda: LoopMembership(
                self._table, settings=LEASE, post=self._post, follow=self._table.follow
            ),
            new_incarnation=lambda: next(self._incarnations),
            rng=random.Random(self._rng.random()),
            stopwatch=lambda: asyncio.get_running_loop().time(),
        )

    async def _on_the_way(self, call: str) -> None:
        self.directory_calls.append(call)
        await asyncio.sleep(DIRECTORY_DELAY_S)

    def connect(self, gateways: list[str], **options: Any) -> Client:
        transport = self._network.transport(f"client-{next(self._clients)}")
        return Client.connect(gateways=gateways, transport=transport, rng=random.Random(self._rng.random()), **options)

    def connect_to(self, gateway: str, **options: Any) -> Client:
        return self.connect([gateway], **options)


class RealStand:
    """gRPC between real sockets, and a real Redis or Valkey server."""

    def __init__(self, redis_url: str, cluster: str) -> None:
        self._redis_url = redis_url
        self._cluster = cluster

    def settings(self, name: str, **settings: Any) -> SiloSettings:
        return SiloSettings(name=name, cluster=self._cluster, redis=self._redis_url, lease=LEASE, **settings)

    def surroundings(self, settings: SiloSettings) -> Surroundings:
        return real_surroundings(settings)

    def connect(self, gateways: list[str], **options: Any) -> Client:
        return Client.connect(self._redis_url, cluster=self._cluster, **options)

    def connect_to(self, gateway: str, **options: Any) -> Client:
        return Client.connect(gateways=[gateway], cluster=self._cluster, **options)


class Cluster:
    """The silos and clients of one test."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.silos: dict[str, Silo] = {}
        self._clients: list[Client] = []

    # -------------------------------------------------------------------------------------------------------- members

    async def start(
        self, *names: str, kinds: tuple[type, ...], registry: TypeRegistry = DEFAULT_REGISTRY, **settings: Any
    ) -> list[Silo]:
        """Start silos of these names that host these kinds, and wait until every silo sees all of them active."""
        started: list[Silo] = []
        for name in names:
            own = self.stand.settings(name, **settings)
            silo = Silo(*kinds, settings=own, surroundings=self.stand.surroundings(own), registry=registry)
            await silo.start()
            self.silos[name] = silo
            started.append(silo)
        await self.seen(lambda: all(len(silo.view.active()) == len(self.silos) for silo in self.silos.values()))
        return started

    async def client(self, **options: Any) -> Client:
        """A client that has reached the cluster."""
        client = self.unopened_client(**options)
        await client.open()
        async with asyncio.timeout(LIMIT_S):
            await client.reachable()
        return client

    def unopened_client(self, gateways: list[str] | None = None, only: str | None = None, **options: Any) -> Client:
        """A client that is not open yet.

        Args:
            gateways: endpoints to knock at, where there is no Redis to ask; those of all silos if left out.
            only: the one endpoint to be told of, though there may be a Redis.
        """
        if only is not None:
            client = self.stand.connect_to(only, **options)
        else:
            client = self.stand.connect(gateways or [silo.endpoint for silo in self.silos.values()], **options)
        self._clients.append(client)
        return client

    async def stop(self, name: str) -> None:
        """Let a silo leave in order."""
        await self.silos.pop(name).drain_and_stop()

    async def kill(self, name: str) -> None:
        """End a silo as a crash would."""
        await self.silos.pop(name).kill()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for name in list(self.silos):
            await self.kill(name)

    # -------------------------------------------------------------------------------------------------------- looking

    async def seen(self, condition: Callable[[], object]) -> None:
        """Wait until it is so, where nobody tells when that is."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 - nothing sets an event for the test
                await asyncio.sleep(LOOK_EVERY_S)

    def activation(self, grain: Any) -> Activation:
        """The one activation of a grain that is open or draining; fails where there are none or two."""
        states = (State.OPEN, State.DRAINING)
        found = [
            activation
            for silo in self.silos.values()
            if (activation := silo.runtime.catalog.get(grain_id(grain))) is not None and activation.state in states
        ]
        assert len(found) == 1, f"{grain!r} has {len(found)} live activations: {found}"
        return found[0]

    def home(self, grain: Any) -> str:
        """The name of the silo where the grain is."""
        return self.activation(grain).silo_name

    async def arrived(self, grain: Any, name: str) -> None:
        """Wait until the grain is open at this silo, and nowhere else."""

        def homes() -> list[str]:
            found = [(each, silo.runtime.catalog.get(grain_id(grain))) for each, silo in self.silos.items()]
            return [each for each, activation in found if activation is not None and activation.state is State.OPEN]

        await self.seen(lambda: homes() == [name])

    def is_active(self, grain: Any) -> bool:
        """Whether any silo has an activation of it, in whatever state."""
        return any(silo.runtime.catalog.get(grain_id(grain)) is not None for silo in self.silos.values())

    def elsewhere(self, grain: Any) -> str:
        """The name of some silo where the grain is not."""
        return next(name for name in self.silos if name != self.home(grain))

    async def entry(self, grain: Any) -> Entry | None:
        """The grain's row in the directory."""
        (entry,) = await next(iter(self.silos.values())).runtime.directory.lookup([grain_id(grain)])
        return entry

    def waiting(self, grain: Any) -> int:
        """How many calls stand in the grain's queue."""
        return self.activation(grain).turns.waiting_count

    async def queued(self, grain: Any, calls: int) -> None:
        """Wait until so many calls stand in the grain's queue."""
        await self.seen(lambda: self.waiting(grain) >= calls)

    async def draining(self, grain: Any) -> None:
        """Wait until the grain holds new calls back."""
        await self.seen(lambda: self.activation(grain).state is State.DRAINING)
