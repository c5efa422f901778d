"""What silos host and take, asked of each of them, and held against the directory and against each other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from silo.client import Client
from silo.directory.redis_directory import RedisDirectory
from silo.reference import with_timeout
from silo.testing.history import Placed, Violation, bijection
from tests.chaos.grains import Census, SiloCensus

ASK_TIMEOUT_S: Final = 10.0


async def taken(client: Client, name: str) -> SiloCensus:
    """The census of the silo of this name: a grain is moved there, and counts."""
    census = with_timeout(client.grain(Census, name), ASK_TIMEOUT_S)
    await census.take()
    await client.migrate(census, to=name, force=True)
    return await census.take()


async def all_taken(client: Client, silos: Sequence[str]) -> dict[str, SiloCensus]:
    """Of all silos, once every census grain is where it counts."""
    for name in silos:
        await taken(client, name)
    found = await asyncio.gather(*(taken(client, name) for name in silos))
    return dict(zip(silos, found, strict=True))


async def disagreements(client: Client, redis: str, cluster: str, silos: Mapping[str, str]) -> list[Violation]:
    """Where directory, catalogs and management do not say the same.

    Args:
        redis: the URL of its server.
        silos: which incarnation each silo should be, by the silos' names.
    """
    censuses = await all_taken(client, list(silos))
    found: list[Violation] = []
    for name, census in censuses.items():
        if census.silo != silos[name]:
            found.append(Violation("directory true", name, f"its census was taken by {census.silo}"))
        if census.catalogs != 1:
            found.append(Violation("no leak", name, f"it has {census.catalogs} catalogs in memory"))
    directory = RedisDirectory.at(redis, cluster)
    try:
        rows = [
            Placed(str(entry.grain), str(entry.silo), entry.activation, entry.epoch)
            async for page in directory.entries()
            for entry in page
        ]
    finally:
        await directory.close()
    living = [
        Placed(one.grain, census.silo, one.activation, one.epoch)
        for census in censuses.values()
        for one in census.living
    ]
    found += bijection(rows, living)
    status = await client.management.status()
    if (status.activations, status.answered) != (len(rows), len(silos)):
        text = f"{status.answered} silos tell of {status.activations} activations, the directory has {len(rows)} rows"
        found.append(Violation("directory true", "management", text))
    return found
