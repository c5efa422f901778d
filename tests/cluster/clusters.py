"""Clusters of a few silos and clients within one process, on two stands.

`memory` is a network, a directory and a membership table in memory under virtual time; `real` is gRPC on loopback and a
Redis or Valkey server. A test that uses the fixture `cluster` says nothing of either.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import Any, Protocol

from silo.client import Client
from silo.directory.addresses import SiloAddress
from silo.directory.lease_post import Deliver, LeasePost
from silo.directory.lease_settings import LeaseSettings
from silo.directory.memory_directory import DirectoryRows, MemoryDirectory
from silo.host import Silo
from silo.persistence.memory_storage import MemoryStorage, StorageRows
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.settings import SiloSettings
from silo.surroundings import Surroundings, real_surroundings
from silo.testing.looking import LIMIT_S, Looking
from silo.testing.network import MemoryNetwork
from silo.testing.world import World

LEASE = LeaseSettings(lease_s=5.0)
DIRECTORY_DELAY_S = 0.001


class Stand(Protocol):
    """What silos and clients stand on."""

    def settings(self, name: str, **settings: Any) -> SiloSettings: ...

    def surroundings(self, settings: SiloSettings) -> Surroundings: ...

    def connect(self, gateways: list[str], **options: Any) -> Client: ...

    def connect_to(self, gateway: str, **options: Any) -> Client: ...


class MemoryStand:
    """Everything in memory; for a loop under virtual time, or any other."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(random.Random(seed), lease=LEASE)
        self.storage_calls: list[str] = []
        """What the storage was asked, in order."""
        self.directory_calls: list[str] = []
        """What the directory was asked of grains, in order; not the claims of silos, which are of whole buckets."""
        self.without_table: set[str] = set()
        """The names of silos that cannot reach the membership table; others renew for them, and acknowledge them."""
        self.unheard: set[str] = set()
        """Those whose leases no other hears, and which hear none."""
        self._clients = itertools.count(1)
        self.world.post = LeasePost(self._carry)

    def _carry(self, sender: SiloAddress, receiver: SiloAddress, deliver: Deliver) -> None:
        names = {silo.endpoint.partition(":")[0] for silo in (sender, receiver)}
        if not names & self.unheard:
            self.world.road(sender, receiver, deliver)

    def cut_lease(self, name: str) -> None:
        """Let the silo renew no more, by whatever way: it will be fenced, and declared dead."""
        self.without_table.add(name)
        self.unheard.add(name)

    def mend_lease(self, name: str) -> None:
        self.without_table.discard(name)
        self.unheard.discard(name)

    def mend_leases(self) -> None:
        self.without_table.clear()
        self.unheard.clear()

    @property
    def rows(self) -> DirectoryRows:
        return self.world.rows

    @property
    def storage_rows(self) -> StorageRows:
        return self.world.storage_rows

    @property
    def network(self) -> MemoryNetwork:
        return self.world.network

    def settings(self, name: str, **settings: Any) -> SiloSettings:
        listen = f"{name}:7000"
        return SiloSettings(name=name, listen=listen, insecure=True, bootstrap=True, lease=LEASE, **settings)

    def surroundings(self, settings: SiloSettings) -> Surroundings:
        """The world's, with a directory and a storage that take an even time and write down what they are asked."""
        name = str(settings.name)
        return replace(
            self.world.surroundings(name),
            open_directory=lambda: MemoryDirectory(self.rows, before=lambda call: self.asked(name, call)),
            open_storage=lambda: MemoryStorage(self.storage_rows, before=self.storage_asked),
        )

    async def asked(self, _name: str, call: str) -> None:
        """A silo of this name asks the directory."""
        if call not in ("claim", "inquire"):
            self.directory_calls.append(call)
        await asyncio.sleep(DIRECTORY_DELAY_S)

    async def storage_asked(self, call: str) -> None:
        """A silo asks the storage."""
        self.storage_calls.append(call)
        await asyncio.sleep(DIRECTORY_DELAY_S)

    def connect(self, gateways: list[str], **options: Any) -> Client:
        transport = self.network.transport(f"client-{next(self._clients)}")
        return Client.connect(gateways=gateways, transport=transport, rng=self.world.draw_rng(), **options)

    def connect_to(self, gateway: str, **options: Any) -> Client:
        return self.connect([gateway], **options)


class RealStand:
    """gRPC between real sockets, and a real Redis or Valkey server."""

    def __init__(self, redis_url: str, cluster: str) -> None:
        self._redis_url = redis_url
        self._cluster = cluster

    def settings(self, name: str, **settings: Any) -> SiloSettings:
        cluster, redis = self._cluster, self._redis_url
        return SiloSettings(name=name, cluster=cluster, redis=redis, bootstrap=True, lease=LEASE, **settings)

    def surroundings(self, settings: SiloSettings) -> Surroundings:
        return real_surroundings(settings)

    def connect(self, gateways: list[str], **options: Any) -> Client:
        return Client.connect(self._redis_url, cluster=self._cluster, **options)

    def connect_to(self, gateway: str, **options: Any) -> Client:
        return Client.connect(gateways=[gateway], cluster=self._cluster, **options)


class Cluster(Looking):
    """The silos and clients of one test."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.silos: dict[str, Silo] = {}
        self._clients: list[Client] = []

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

    def hosts(self) -> dict[str, Silo]:
        return self.silos
