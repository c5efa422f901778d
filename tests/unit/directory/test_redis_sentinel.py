"""The Redis directory behind Sentinel: a failover is followed, and its epochs stay above those given before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Registration
from silo.directory.directory_scripts import RUN_JUMP
from silo.directory.errors import DirectoryUnavailable
from silo.directory.redis_connection import open_redis, open_sync
from silo.directory.redis_directory import RedisDirectory
from silo.embedded import free_port
from tests.support.redis_topology import SERVICE, Replicated, is_in_role, replicated

pytestmark = pytest.mark.redis

ADA = GrainId("player", "ada")
ONE = SiloAddress("10.0.0.1:7000", 1)
FAILOVER_WITHIN_S = 20.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Replicated]:
    with replicated(tmp_path) as servers:
        yield servers


@pytest.fixture
async def directory(servers: Replicated) -> AsyncIterator[RedisDirectory]:
    opened = RedisDirectory.at(servers.url, "here")
    await opened.open()
    yield opened
    await opened.close()


async def test_a_failover_is_followed_and_jumps_epochs(directory: RedisDirectory, servers: Replicated) -> None:
    (entry,) = await directory.register([Registration(ADA, ONE, "a1")])
    assert entry is not None
    await asyncio.to_thread(servers.await_copies)
    await asyncio.to_thread(servers.master.kill)

    async def moved() -> Entry | None:
        while True:
            with contextlib.suppress(DirectoryUnavailable):
                (row,) = await directory.register([Registration(ADA, ONE, "a2", expected=entry)])
                return row

    row = await asyncio.wait_for(moved(), FAILOVER_WITHIN_S)
    assert row == Entry(ADA, ONE, "a2", entry.epoch + RUN_JUMP + 1)
    assert is_in_role(servers.replica, "master")


def test_a_blocking_client_finds_the_master(servers: Replicated) -> None:
    with contextlib.closing(cast("Any", open_sync(servers.url, 1.0))) as client:
        assert client.info("server")["tcp_port"] == servers.master.port


async def test_commands_that_look_for_the_master_at_once_forget_no_sentinel(servers: Replicated) -> None:
    """The first of the URL does not answer, so that each command puts another one in front."""
    hosts = [f"127.0.0.1:{free_port()}", *servers.sentinels, f"127.0.0.1:{free_port()}"]
    client: Any = open_redis(f"redis+sentinel://{','.join(hosts)}/{SERVICE}")
    try:
        await asyncio.gather(*(client.execute_command("PING") for _ in range(8)))
        asked = {
            f"127.0.0.1:{sentinel.connection_pool.connection_kwargs['port']}"
            for sentinel in client.connection_pool.sentinel_manager.sentinels
        }
        assert asked == set(hosts)
    finally:
        await client.aclose()
