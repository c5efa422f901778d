"""The subscription to changes of the membership table: alive, half open, and opened anew. Its time is an argument."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from silo.directory.redis_connection import open_sync
from silo.directory.redis_hints import OPEN_EVERY_S, PING_EVERY_S, SILENCE_MAX_S, RedisHints
from silo.directory.redis_membership import views_channel
from tests.support.redis_proxy import RedisProxy
from tests.support.redis_server import operator

STEP_TIMEOUT_S = 1.0
WITHIN_S = 5.0


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[RedisProxy]:
    async with RedisProxy(redis_url) as opened:
        yield opened


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Any]:
    async with operator(redis_url) as client:
        yield client


@pytest.fixture
async def hints(proxy: RedisProxy, cluster_name: str) -> AsyncIterator[RedisHints]:
    made = RedisHints(lambda timeout_s: open_sync(proxy.url, timeout_s), cluster_name, STEP_TIMEOUT_S)
    yield made
    made.close()


async def heard(hints: RedisHints, version: int) -> None:
    """Read until this version is heard; reading never waits, and nobody tells when there is something."""
    async with asyncio.timeout(WITHIN_S):
        while hints.read() != version:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


async def subscribed(server: Any, channel: str, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while (await server.pubsub_numsub(channel))[0][1] != count:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)


def tend(hints: RedisHints, now: float) -> Callable[[], None]:
    return lambda: hints.tend(now)


async def test_S105_a_subscription_that_brings_nothing_not_even_a_pong_is_opened_anew(
    hints: RedisHints, proxy: RedisProxy, server: Any, cluster_name: str
) -> None:
    channel = views_channel(cluster_name)
    await asyncio.to_thread(tend(hints, 0.0))
    await subscribed(server, channel, 1)
    await server.publish(channel, 1)
    await heard(hints, 1)
    await asyncio.to_thread(tend(hints, 1.0))

    proxy.holds_answers = True
    await server.publish(channel, 2)
    await asyncio.to_thread(tend(hints, 1.0 + PING_EVERY_S))  # a ping on a half-open connection succeeds
    await asyncio.to_thread(tend(hints, 1.0 + SILENCE_MAX_S))
    assert hints.read() == 0
    assert hints.fileno() is not None
    await asyncio.to_thread(tend(hints, 1.1 + SILENCE_MAX_S))
    assert hints.fileno() is None

    proxy.holds_answers = False
    await asyncio.to_thread(tend(hints, 1.2 + SILENCE_MAX_S + OPEN_EVERY_S))
    await subscribed(server, channel, 1)
    await server.publish(channel, 3)
    await heard(hints, 3)


async def test_a_quiet_subscription_that_answers_its_pings_stays_as_it_is(
    hints: RedisHints, server: Any, cluster_name: str
) -> None:
    await asyncio.to_thread(tend(hints, 0.0))
    await subscribed(server, views_channel(cluster_name), 1)
    opened = hints.fileno()
    assert opened is not None
    for number in range(1, 10):
        await asyncio.to_thread(tend(hints, number * (PING_EVERY_S + 0.1)))
        readable, _, _ = await asyncio.to_thread(select.select, [opened], [], [], WITHIN_S)
        assert readable
        hints.read()
    assert hints.fileno() == opened
