"""The Redis storage under faults: lost and late answers and scripts, restarts, refusals, other releases' rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from silo.directory.addresses import GrainId
from silo.directory.errors import (
    InvalidIdentity,
    InvalidSettings,
    StorageOutcomeUnknown,
    StorageUnavailable,
    StoredStateUnreadable,
)
from silo.embedded import EmbeddedServer
from silo.persistence.contract import (
    FENCE_KEPT_S,
    NO_ETAG,
    Change,
    Claim,
    Conflicting,
    StateBody,
    StoredState,
    Superseded,
    Written,
)
from silo.persistence.redis_storage import COMMANDS_IN_FLIGHT_MAX, RedisStorage
from silo.persistence.storage_scripts import state_key
from tests.support.redis_proxy import RedisProxy
from tests.support.redis_server import operator

LOBBY = GrainId("room", "lobby")
KEY = "silo:{here:179}:state:room/lobby"
"""Golden: the hash of every release must agree."""
FIRST = Claim(LOBBY, 5, "a1")
SECOND = Claim(LOBBY, 6, "a2")
HELLO = StateBody(1, 1, b"\xa5hello")
INSERT = Change("profile", NO_ETAG, False, "e1", HELLO)
CLEAR = Change("profile", "e1", True, "e2", None)
ITERATIONS = 50


@pytest.fixture
async def server(own_redis_server: EmbeddedServer) -> AsyncIterator[Any]:
    """A plain client of the test's own server: what an operator with redis-cli sees and does."""
    async with operator(own_redis_server.url) as client:
        yield client


@pytest.fixture
async def storage(own_redis_server: EmbeddedServer) -> AsyncIterator[RedisStorage]:
    opened = RedisStorage.at(own_redis_server.url, "here")
    yield opened
    await opened.close()


@pytest.fixture
async def proxy(own_redis_server: EmbeddedServer) -> AsyncIterator[RedisProxy]:
    async with RedisProxy(own_redis_server.url) as opened:
        yield opened


@pytest.fixture
async def by_proxy(proxy: RedisProxy) -> AsyncIterator[RedisStorage]:
    """The storage, by a way on which answers are lost or late."""
    opened = RedisStorage.at(proxy.url, "here")
    yield opened
    await opened.close()


async def test_rows_lie_where_and_how_the_format_says(storage: RedisStorage, server: Any) -> None:
    await storage.write(FIRST, INSERT)
    await storage.write(FIRST, Change("cart", NO_ETAG, False, "c1", HELLO))
    await storage.write(FIRST, Change("cart", "c1", True, "c2", None))
    assert state_key("here", LOBBY) == KEY
    assert await server.hgetall(KEY) == {
        b"fence": b"1 5 a1",
        b"head:profile": b"1 e1 1 1 1",
        b"body:profile": b"\xa5hello",
        b"head:cart": b"1 c2 0 0 0",
    }


async def test_rows_of_the_first_release_stay_readable(storage: RedisStorage, server: Any) -> None:
    await server.hset(KEY, mapping={"fence": "1 5 a1", "head:profile": "1 e1 1 1 1", "body:profile": b"\xa5hello"})
    await server.hset(KEY, "head:cart", "1 c2 0 0 0")
    assert await storage.read(FIRST, ["profile", "cart"]) == [StoredState("e1", HELLO), StoredState("c2", None)]
    assert await storage.read(SECOND, ["profile"]) == [StoredState("e1", HELLO)]


async def test_two_clusters_on_one_server_do_not_see_each_other(
    storage: RedisStorage, own_redis_server: EmbeddedServer
) -> None:
    await storage.write(FIRST, INSERT)
    there = RedisStorage.at(own_redis_server.url, "there")
    assert await there.read(Claim(LOBBY, 1, "b1"), ["profile"]) == [StoredState()]
    await there.close()
    with pytest.raises(InvalidIdentity):
        RedisStorage.at(own_redis_server.url, "a}:b")


async def test_a_fence_alone_is_forgotten_in_time_and_a_value_never(storage: RedisStorage, server: Any) -> None:
    await storage.read(FIRST, ["profile"])
    assert 0 < await server.ttl(KEY) <= FENCE_KEPT_S
    await storage.write(FIRST, INSERT)
    assert await server.ttl(KEY) == -1
    await storage.read(SECOND, ["profile"])
    assert await server.ttl(KEY) == -1
    await storage.write(SECOND, CLEAR)
    assert 0 < await server.ttl(KEY) <= FENCE_KEPT_S


async def test_who_has_cleared_long_ago_writes_as_if_nothing_had_ever_been_there(
    storage: RedisStorage, server: Any
) -> None:
    await storage.write(FIRST, INSERT)
    await storage.write(FIRST, CLEAR)
    await server.delete(KEY)  # its time is over
    assert await storage.write(FIRST, Change("profile", "e2", False, "e3", HELLO)) == Written()
    assert await storage.read(FIRST, ["profile"]) == [StoredState("e3", HELLO)]


async def test_S102_flushed_scripts_are_loaded_again_without_anyone_noticing(
    storage: RedisStorage, server: Any
) -> None:
    await storage.write(FIRST, INSERT)
    await server.script_flush()
    assert await storage.read(FIRST, ["profile"]) == [StoredState("e1", HELLO)]
    await server.script_flush()
    assert await storage.write(FIRST, CLEAR) == Written()


class TestAnswersLost:
    async def test_S074_a_write_whose_answer_was_lost_is_resolved_by_asking_again(
        self, proxy: RedisProxy, by_proxy: RedisStorage
    ) -> None:
        etag, exists = NO_ETAG, False
        for number in range(1, 21):
            proxy.lose_answers = number % 2 + 1
            new = f"e{number}"
            assert await by_proxy.write(FIRST, Change("profile", etag, exists, new, HELLO)) == Written()
            etag, exists = new, True
        assert proxy.answers_lost >= 20
        assert await by_proxy.read(FIRST, ["profile"]) == [StoredState(etag, HELLO)]

    async def test_S074_where_every_answer_is_lost_the_outcome_is_unknown(
        self, proxy: RedisProxy, by_proxy: RedisStorage, storage: RedisStorage
    ) -> None:
        await by_proxy.write(Claim(GrainId("room", "other"), 1, "a1"), INSERT)  # so that the server knows the script
        proxy.lose_answers = 1000
        with pytest.raises(StorageOutcomeUnknown, match="'profile' of room/lobby in cluster 'here'"):
            await by_proxy.write(FIRST, INSERT)
        assert await storage.read(FIRST, ["profile"]) == [StoredState("e1", HELLO)]

    async def test_a_refusal_is_in_doubt_where_an_earlier_try_may_have_been_carried_out(
        self, proxy: RedisProxy, by_proxy: RedisStorage, server: Any
    ) -> None:
        """It was carried out, and replaced by the successor before the second try came."""
        await by_proxy.write(Claim(GrainId("room", "other"), 1, "a1"), INSERT)  # so that the server knows the script
        proxy.lose_answers = 1
        writing = asyncio.create_task(by_proxy.write(FIRST, INSERT))
        while not await server.hexists(KEY, "fence"):  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0)
        await server.hset(KEY, mapping={"fence": "1 6 a2", "head:profile": "1 e9 1 1 1"})
        with pytest.raises(StorageOutcomeUnknown, match="earlier try"):
            await writing

    async def test_a_read_whose_answer_was_lost_is_sent_again(
        self, proxy: RedisProxy, by_proxy: RedisStorage, storage: RedisStorage
    ) -> None:
        await storage.write(FIRST, INSERT)
        proxy.lose_answers = 2
        assert await by_proxy.read(SECOND, ["profile"]) == [StoredState("e1", HELLO)]

    async def test_a_read_that_got_no_answer_is_an_error_and_not_an_empty_record(
        self, proxy: RedisProxy, by_proxy: RedisStorage
    ) -> None:
        proxy.lose_answers = 1000
        with pytest.raises(StorageUnavailable):
            await by_proxy.read(FIRST, ["profile"])

    async def test_S078_a_write_that_comes_late_is_refused(
        self, proxy: RedisProxy, by_proxy: RedisStorage, storage: RedisStorage
    ) -> None:
        """The way of the old owner is slower than the new owner is; whichever comes first, no write is lost."""
        for iteration in range(ITERATIONS):
            grain = GrainId("room", str(iteration))
            old, new = Claim(grain, 1, "a1"), Claim(grain, 2, "a2")
            await storage.write(old, INSERT)
            late = asyncio.create_task(by_proxy.write(old, Change("profile", "e1", True, "late", HELLO)))
            for _ in range(iteration % 5):
                await asyncio.sleep(0)
            reading = await storage.read(new, ["profile"])
            assert not isinstance(reading, Superseded)
            etag = reading[0].etag
            for number in (1, 2):
                write = Change("profile", etag, True, f"new{number}", HELLO)
                assert await storage.write(new, write) == Written()
                etag = write.etag
            outcome = await late
            assert outcome == Written() if reading[0].etag == "late" else outcome == Superseded(2)
            assert await storage.read(new, ["profile"]) == [StoredState("new2", HELLO)]


class TestRefusals:
    async def test_a_server_that_is_away_is_unavailable_to_readers_and_comes_back(
        self, own_redis_server: EmbeddedServer, storage: RedisStorage
    ) -> None:
        await storage.read(FIRST, ["profile"])
        own_redis_server.kill()
        with pytest.raises(StorageUnavailable):
            await storage.read(FIRST, ["profile"])
        with pytest.raises(StorageUnavailable):
            await storage.open()
        await asyncio.to_thread(own_redis_server.restart)
        await storage.open()
        assert await storage.read(FIRST, ["profile"]) == [StoredState()]

    async def test_a_write_that_the_server_itself_refused_was_not_carried_out(
        self, storage: RedisStorage, server: Any
    ) -> None:
        await storage.write(FIRST, INSERT)
        await server.config_set("maxmemory", 1)
        with pytest.raises(StorageUnavailable, match=r"OOM|memory"):
            await storage.write(FIRST, CLEAR)
        await server.config_set("maxmemory", 0)
        assert await storage.read(FIRST, ["profile"]) == [StoredState("e1", HELLO)]

    async def test_a_user_that_may_run_no_scripts_is_told_at_start(
        self, own_redis_server: EmbeddedServer, server: Any
    ) -> None:
        await server.execute_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-eval", "-evalsha")
        muted = RedisStorage.at(own_redis_server.url.replace("redis://", "redis://mute:secret@"), "here")
        with pytest.raises(InvalidSettings, match="EVAL"):
            await muted.open()
        await muted.close()

    @pytest.mark.parametrize(
        "row",
        [
            {"fence": "2 5 a1 more"},
            {"head:profile": "2 e1 whatever", "body:profile": "x"},
            {"head:profile": "1 e1 1 one 1", "body:profile": "x"},
            {"head:profile": "1 e1 1 1 1"},
            {"head:profile": "1 e1 0 1 1", "body:profile": "x"},
            {"body:profile": "x"},
        ],
    )
    async def test_rows_that_this_release_cannot_read_are_left_alone(
        self, storage: RedisStorage, server: Any, row: dict[str, str]
    ) -> None:
        await server.hset(KEY, mapping=row)
        with pytest.raises(StoredStateUnreadable):
            await storage.read(FIRST, ["profile"])
        before = await server.hgetall(KEY)
        try:
            assert isinstance(await storage.write(FIRST, INSERT), Conflicting | Written)
        except StoredStateUnreadable:
            assert await server.hgetall(KEY) == before
        else:
            assert "fence" not in row
            assert not row.get("head:profile", "").startswith("2")


async def test_more_at_once_than_there_are_connections_wait_and_are_served(storage: RedisStorage) -> None:
    many = [Claim(GrainId("room", str(n)), 1, "a") for n in range(COMMANDS_IN_FLIGHT_MAX * 20)]
    assert await asyncio.gather(*(storage.write(claim, INSERT) for claim in many)) == [Written()] * len(many)
    assert await asyncio.gather(*(storage.read(claim, ["profile"]) for claim in many)) == [
        [StoredState("e1", HELLO)]
    ] * len(many)
