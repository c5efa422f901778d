"""A cluster of real processes for the samples that bring their own, and a client of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from silo import Client
from silo.embedded import EmbeddedServer
from silo.testing.processes import ProcessCluster

CLUSTER = "sample"


@dataclass(frozen=True)
class LocalCluster:
    """Silo processes named silo-1, silo-2 and so on, all running."""

    silos: ProcessCluster
    names: tuple[str, ...]
    client: Client


@contextlib.asynccontextmanager
async def local_cluster(module: str, *, silos: int) -> AsyncIterator[LocalCluster]:
    """Start a server for the directory and silos that host the module's grains; all of it ends with the block."""
    names = tuple(f"silo-{number}" for number in range(1, silos + 1))
    async with EmbeddedServer() as server, ProcessCluster([module], redis=server.url, cluster=CLUSTER) as cluster:
        await cluster.start_all(names)
        async with Client.connect(server.url, cluster=CLUSTER) as client:
            yield LocalCluster(cluster, names, client)
