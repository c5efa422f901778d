"""A client follows the members through Redis and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
import redis

from silo.directory.addresses import SiloAddress
from silo.directory.errors import InvalidSettings, MembershipUnavailable
from silo.directory.members_reader import MembersReader
from silo.directory.membership import Bury, Join, SiloInfo, TableRequest, View
from silo.directory.redis_connection import open_redis, open_sync
from silo.directory.redis_membership import RedisMembershipTable, members_key
from silo.embedded import EmbeddedServer

A, B = (SiloAddress(f"10.0.0.{n}:7000", n) for n in (1, 2))
WITHIN_S = 10.0


def raw(url: str) -> Any:
    """A client for what the reader does not do; typed loosely, as redis-py's own types are."""
    return cast("Any", redis.Redis).from_url(url)


@asynccontextmanager
async def reading(url: str, cluster: str, read_every_s: float = 60.0) -> AsyncGenerator[MembersReader]:
    client = open_redis(url)
    reader = MembersReader(client, cluster, read_every_s=read_every_s)
    following = asyncio.create_task(reader.follow())
    try:
        yield reader
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await client.aclose()


async def seen(reader: MembersReader, condition: Callable[[View], bool]) -> None:
    changed = asyncio.Event()
    end = reader.subscribe(lambda _: changed.set())
    async with asyncio.timeout(WITHIN_S):
        while not condition(reader.view):
            changed.clear()
            await changed.wait()
    end()


def ask(url: str, cluster: str, *requests: TableRequest) -> None:
    table = RedisMembershipTable(lambda timeout_s: open_sync(url, timeout_s), cluster)
    for request in requests:
        table.ask(request, 5.0)
    table.close()


async def test_a_change_is_seen_by_its_hint(redis_url: str, cluster_name: str) -> None:
    async with reading(redis_url, cluster_name) as reader:
        await reader.read()
        assert reader.view.living() == ()
        ask(redis_url, cluster_name, Join(A, SiloInfo(name="a")))
        await seen(reader, lambda view: view.is_alive(A))
        ask(redis_url, cluster_name, Join(B, SiloInfo(name="b")), Bury(A, "test"))
        await seen(reader, lambda view: view.is_dead(A) and view.is_alive(B))


async def test_S105_a_change_is_seen_by_reading_when_no_hint_arrives(redis_url: str, cluster_name: str) -> None:
    async with reading(redis_url, cluster_name, read_every_s=0.05) as reader:
        await reader.read()
        ask(redis_url, "elsewhere", Join(A, SiloInfo(name="a")))
        with raw(redis_url) as client:
            client.copy(members_key("elsewhere"), members_key(cluster_name))  # in silence
            client.delete(members_key("elsewhere"))
        await seen(reader, lambda view: view.is_alive(A))


async def test_an_equal_view_is_told_to_nobody(redis_url: str, cluster_name: str) -> None:
    client = open_redis(redis_url)
    reader = MembersReader(client, cluster_name)
    ask(redis_url, cluster_name, Join(A, SiloInfo(name="a")))
    told: list[int] = []
    reader.subscribe(lambda view: told.append(view.version))
    for _ in range(3):
        await reader.read()
    assert told == [1]
    await client.aclose()


async def test_it_goes_on_after_the_store_was_away_and_after_it_lost_everything(
    own_redis_server: EmbeddedServer,
) -> None:
    url = own_redis_server.url
    ask(url, "c", Join(A, SiloInfo(name="a")), Join(B, SiloInfo(name="b")))
    async with reading(url, "c", read_every_s=0.05) as reader:
        await seen(reader, lambda view: view.version == 2)
        with raw(url) as client:
            client.flushall()
        ask(url, "c", Join(B, SiloInfo(name="b")))
        await seen(reader, lambda view: [row.silo for row in view.living()] == [B])
        own_redis_server.stop()
        with pytest.raises(MembershipUnavailable):
            await reader.read()
        assert reader.view.is_alive(B), "the last view stays"


async def test_S119_a_wrong_password_ends_it_at_once(own_redis_server: EmbeddedServer) -> None:
    client = open_redis(own_redis_server.url.replace("redis://", "redis://nobody:wrong@"))
    with pytest.raises(InvalidSettings):
        await MembersReader(client, "c").follow()
    await client.aclose()
