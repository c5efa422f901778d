"""A cluster of real processes for the samples that bring their own, and a client of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from typing import Any

from silo import Client
from silo.application import run_on
from silo.embedded import EmbeddedServer, EmbeddedServerFailed
from silo.testing.processes import ProcessCluster, SiloProcessFailed

CLUSTER = "sample"
INTERRUPTED = 130


@dataclass(frozen=True)
class LocalCluster:
    """Silo processes named silo-1, silo-2 and so on, all running."""

    silos: ProcessCluster
    names: tuple[str, ...]
    client: Client


@contextlib.asynccontextmanager
async def local_cluster(module: str, *, silos: int) -> AsyncGenerator[LocalCluster]:
    """Start a server for the directory and silos that host the module's grains; all of it ends with the block."""
    names = tuple(f"silo-{number}" for number in range(1, silos + 1))
    async with EmbeddedServer() as server, ProcessCluster([module], redis=server.url, cluster=CLUSTER) as cluster:
        await cluster.start_all(names)
        async with Client.connect(server.url, cluster=CLUSTER) as client:
            yield LocalCluster(cluster, names, client)


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """Run a sample, on uvloop where there is one; returns its exit code. Ctrl-C ends it, and its cluster with it."""
    try:
        return run_on(None, work)
    except KeyboardInterrupt:
        print("interrupted; the cluster has been stopped", file=sys.stderr)
        return INTERRUPTED
    except (EmbeddedServerFailed, SiloProcessFailed) as error:
        print(f"the cluster did not start: {error}", file=sys.stderr)
        return 1
