"""The Redis directory under faults: lost answers and scripts, restarts, stalls, refusals, other releases' rows."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.exceptions
from msgspec.structs import replace
from redis.exceptions import ReadOnlyError

from silo.directory import redis_connection
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Registration
from silo.directory.directory_scripts import RUN_JUMP, bucket_keys, bucket_of
from silo.directory.errors import (
    DirectoryLifeOver,
    DirectoryRowUnreadable,
    DirectoryUnavailable,
    InvalidIdentity,
    InvalidSettings,
)
from silo.directory.redis_directory import RedisDirectory
from silo.embedded import EmbeddedServer
from tests.support.redis_proxy import RedisProxy
from tests.support.redis_server import operator

ADA = GrainId("player", "ada")
LOBBY = GrainId("room", "lobby")
ONE = SiloAddress("10.0.0.1:7000", 11)
GIVEN_UP_WITHIN_S = redis_connection.TRY_WITHIN_S + 2 * redis_connection.COMMAND_TIMEOUT_S


@pytest.fixture
async def server(own_redis_server: EmbeddedServer) -> AsyncIterator[Any]:
    """A plain client of the test's own server: what an operator with redis-cli sees and does."""
    async with operator(own_redis_server.url) as client:
        yield client


@pytest.fixture
async def directory(own_redis_server: EmbeddedServer) -> AsyncIterator[RedisDirectory]:
    opened = RedisDirectory.at(own_redis_server.url, "here")
    yield opened
    await opened.close()


def entries_key(grain: GrainId) -> str:
    return bucket_keys("here")[bucket_of(str(grain))][0]


async def register(directory: RedisDirectory, grain: GrainId, activation: str, expected: Entry | None = None) -> Entry:
    (entry,) = await directory.register([Registration(grain, ONE, activation, expected)])
    assert entry is not None
    return entry


def many(count: int, activation: str = "a") -> list[Registration]:
    return [Registration(GrainId("k", str(n)), ONE, f"{activation}{n}") for n in range(count)]


async def calls_of(server: Any, command: str) -> int:
    stats: dict[str, Any] = await server.info("commandstats")
    calls: int = stats.get(f"cmdstat_{command}", {}).get("calls", 0)
    return calls


async def test_rows_lie_where_and_how_the_format_says(directory: RedisDirectory, server: Any) -> None:
    await register(directory, GrainId("room", "lobby"), "b1")
    bucket = bucket_of("room/lobby")
    assert bucket == 179  # golden: the hash of every release must agree
    assert await server.hgetall(f"silo:{{here:{bucket}}}:entries") == {
        b"room/lobby": b"1 1 11 10.0.0.1:7000 b1 room/lobby"
    }
    run = (await server.info("server"))["run_id"].encode()
    assert await server.hgetall(f"silo:{{here:{bucket}}}:head") == {b"epoch": b"1", b"run": run}


async def test_two_clusters_on_one_server_do_not_see_each_other(
    directory: RedisDirectory, own_redis_server: EmbeddedServer
) -> None:
    here = await register(directory, ADA, "a1")
    there = RedisDirectory.at(own_redis_server.url, "there")
    assert await there.lookup([ADA]) == [None]
    assert [page async for page in there.entries()] == []
    assert await there.unregister([here]) == [False]
    await register(there, ADA, "a2")
    assert await directory.lookup([ADA]) == [here]
    await there.close()


def test_a_cluster_name_that_could_break_out_of_its_keys_is_refused() -> None:
    with pytest.raises(InvalidIdentity):
        RedisDirectory.at("redis://localhost", "a}:b")


async def test_a_batch_is_one_script_call_however_many_buckets_it_is_about(
    directory: RedisDirectory, server: Any
) -> None:
    asked = many(500)
    entries = await directory.register(asked)
    assert await directory.lookup([wanted.grain for wanted in asked]) == entries
    before = await calls_of(server, "evalsha")
    assert await directory.register(asked) == entries
    assert await directory.lookup([wanted.grain for wanted in asked]) == entries
    assert await directory.unregister([entry for entry in entries if entry is not None]) == [True] * 500
    assert await calls_of(server, "evalsha") == before + 3


async def test_each_bucket_of_a_batch_counts_its_own_epochs(directory: RedisDirectory, server: Any) -> None:
    asked = many(500)
    counts = Counter(bucket_of(str(wanted.grain)) for wanted in asked)
    entries = await directory.register(asked)
    epochs: defaultdict[int, list[int]] = defaultdict(list)
    for entry in entries:
        assert entry is not None
        epochs[bucket_of(str(entry.grain))].append(entry.epoch)
    assert epochs == {bucket: list(range(1, count + 1)) for bucket, count in counts.items()}
    stored = [await server.hget(bucket_keys("here")[bucket][1], "epoch") for bucket in counts]
    assert [int(epoch) for epoch in stored] == list(counts.values())


async def test_a_life_that_is_over_stops_its_own_bucket_of_a_batch_alone(directory: RedisDirectory) -> None:
    asked = many(100)
    stopped = bucket_of(str(asked[0].grain))
    asked = [replace(wanted, life="1.1") if bucket_of(str(wanted.grain)) == stopped else wanted for wanted in asked]
    with pytest.raises(DirectoryLifeOver) as caught:
        await directory.register(asked)
    assert caught.value.buckets == {stopped}
    for wanted, row in zip(asked, await directory.lookup([wanted.grain for wanted in asked]), strict=True):
        assert (row and row.activation) == (None if wanted.life else wanted.activation)


class TestScriptsLost:
    async def test_S102_flushed_scripts_are_loaded_again_without_anyone_noticing(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        first = await directory.register(many(50))
        await server.script_flush()
        assert await directory.register(many(50)) == first
        await server.script_flush()
        assert await directory.unregister([entry for entry in first if entry is not None]) == [True] * 50

    async def test_S102_a_flush_in_mid_flight_costs_no_error_and_few_loads(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        await directory.open()
        flushes = 0
        ended = False

        async def flush() -> None:
            nonlocal flushes
            while not ended:
                await server.script_flush()
                flushes += 1
                await server.ping()

        async def batch(number: int) -> list[Entry | None]:
            return await directory.register(many(40, f"b{number}-"))

        flushing = asyncio.create_task(flush())
        answers = [answer for _ in range(5) for answer in await asyncio.gather(*(batch(n) for n in range(8)))]
        ended = True
        await flushing
        assert all(answer == answers[0] for answer in answers)
        assert await directory.lookup([wanted.grain for wanted in many(40)]) == answers[0]
        assert flushes > 0

    async def test_S102_after_a_flush_scripts_travel_whole_once(self, directory: RedisDirectory, server: Any) -> None:
        await directory.register(many(20))
        await server.script_flush()
        await directory.register(many(20))
        sent_whole = await calls_of(server, "eval")
        await asyncio.gather(*(directory.register(many(20, f"b{n}-")) for n in range(10)))
        assert await calls_of(server, "eval") == sent_whole


class TestAnswersLost:
    @pytest.fixture
    async def proxy(self, own_redis_server: EmbeddedServer) -> AsyncIterator[RedisProxy]:
        async with RedisProxy(own_redis_server.url) as between:
            yield between

    @pytest.fixture
    async def far_directory(self, proxy: RedisProxy) -> AsyncIterator[RedisDirectory]:
        opened = RedisDirectory.at(proxy.url, "here")
        await opened.open()
        yield opened
        await opened.close()

    async def test_S014_a_registration_whose_answer_was_lost_answers_with_its_own_row(
        self, far_directory: RedisDirectory, proxy: RedisProxy, server: Any
    ) -> None:
        proxy.lose_answers = 1
        entry = await register(far_directory, ADA, "a1")
        assert proxy.answers_lost == 1
        assert (entry.activation, entry.epoch) == ("a1", 1)
        assert await far_directory.lookup([ADA]) == [entry]

    async def test_S014_a_move_whose_answer_was_lost_took_one_epoch(
        self, far_directory: RedisDirectory, proxy: RedisProxy
    ) -> None:
        source = await register(far_directory, ADA, "a1")
        proxy.lose_answers = 2
        moved = await register(far_directory, ADA, "a2", expected=source)
        assert proxy.answers_lost == 2
        assert (moved.activation, moved.epoch) == ("a2", source.epoch + 1)

    async def test_an_unregistration_whose_answer_was_lost_says_that_the_row_is_gone(
        self, far_directory: RedisDirectory, proxy: RedisProxy
    ) -> None:
        entry = await register(far_directory, ADA, "a1")
        proxy.lose_answers = 1
        assert await far_directory.unregister([entry]) == [True]
        assert await far_directory.unregister([entry]) == [False]

    async def test_when_every_answer_is_lost_the_directory_is_unavailable_and_asking_later_tells(
        self, far_directory: RedisDirectory, proxy: RedisProxy
    ) -> None:
        proxy.lose_answers = 1_000
        with pytest.raises(DirectoryUnavailable, match="registering activations of cluster 'here'"):
            await register(far_directory, ADA, "a1")
        proxy.lose_answers = 0
        assert (await register(far_directory, ADA, "a1")).epoch == 1

    async def test_S100_cancelled_lookups_never_give_one_grains_row_to_another(
        self, far_directory: RedisDirectory, proxy: RedisProxy
    ) -> None:
        entries = await far_directory.register(many(100))
        proxy.delay_s = 0.002
        chance = random.Random(1)
        right = 0

        async def look(number: int) -> None:
            nonlocal right
            try:
                patience_s = chance.choice((chance.uniform(0.0005, 0.1), 30.0))  # some wait whatever the machine does
                async with asyncio.timeout(patience_s):
                    assert await far_directory.lookup([GrainId("k", str(number))]) == [entries[number]]
            except TimeoutError:
                return
            right += 1

        for _ in range(10):
            await asyncio.gather(*(look(chance.randrange(100)) for _ in range(50)))
        assert 0 < right < 500
        proxy.delay_s = 0.0
        assert await far_directory.lookup([wanted.grain for wanted in many(100)]) == entries


class TestServerFaults:
    async def test_S101_a_storm_of_callers_shares_a_bounded_number_of_connections(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        answers = await asyncio.gather(*(directory.lookup([GrainId("k", str(n))]) for n in range(1_000)))
        assert answers == [[None]] * 1_000
        assert len(await server.client_list()) <= redis_connection.CONNECTIONS_MAX + 1

    async def test_S101_storms_that_are_given_up_leave_no_connection_behind_and_nobody_waiting(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        entries = await directory.register(many(100))
        chance = random.Random(101)
        for _ in range(20):
            looking = [asyncio.ensure_future(directory.lookup([GrainId("k", str(n))])) for n in range(100)]
            await asyncio.sleep(chance.uniform(0.0, 0.01))
            for each in looking:
                each.cancel()
            await asyncio.wait(looking)
            async with asyncio.timeout(1.0):
                assert await directory.lookup([GrainId("k", "7")]) == [entries[7]]
        assert len(await server.client_list()) <= redis_connection.CONNECTIONS_MAX + 1

    async def test_S101_a_server_without_room_for_clients_is_an_error_in_time_and_is_used_again_after(
        self, own_redis_server: EmbeddedServer, server: Any
    ) -> None:
        await server.config_set("maxclients", 1)  # the operator's own
        late = RedisDirectory.at(own_redis_server.url, "here")
        async with asyncio.timeout(GIVEN_UP_WITHIN_S):
            with pytest.raises(
                DirectoryUnavailable, match=r"max number of clients|Connection lost"
            ):  # the first of two
                await late.lookup([ADA])
        await server.config_set("maxclients", 100)
        assert await late.lookup([ADA]) == [None]
        await late.close()

    async def test_connections_killed_by_the_server_are_replaced(self, directory: RedisDirectory, server: Any) -> None:
        entry = await register(directory, ADA, "a1")
        assert await server.client_kill_filter(_type="normal", skipme=True) >= 1
        assert await directory.lookup([ADA]) == [entry]

    async def test_a_restart_keeps_rows_and_jumps_epochs(
        self, directory: RedisDirectory, own_redis_server: EmbeddedServer
    ) -> None:
        ada = await register(directory, ADA, "a1")
        await asyncio.to_thread(own_redis_server.restart)
        assert await directory.lookup([ADA]) == [ada]
        moved = await register(directory, ADA, "a2", expected=ada)
        assert moved.epoch == ada.epoch + RUN_JUMP + 1
        again = await register(directory, ADA, "a3", expected=moved)
        assert again.epoch == moved.epoch + 1

    async def test_S106_a_stalled_server_ends_calls_in_bounded_time_and_is_used_again_after(
        self, directory: RedisDirectory, own_redis_server: EmbeddedServer
    ) -> None:
        entry = await register(directory, ADA, "a1")
        os.kill(own_redis_server.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(GIVEN_UP_WITHIN_S):
                with pytest.raises(DirectoryUnavailable):
                    await directory.lookup([ADA])
        finally:
            os.kill(own_redis_server.pid, signal.SIGCONT)
        assert await directory.lookup([ADA]) == [entry]

    async def test_a_server_that_is_away_makes_the_directory_unavailable_with_the_cause(
        self, directory: RedisDirectory, own_redis_server: EmbeddedServer
    ) -> None:
        await asyncio.to_thread(own_redis_server.kill)
        with pytest.raises(DirectoryUnavailable, match="looking up grains of cluster 'here'") as caught:
            await directory.lookup([ADA])
        assert isinstance(caught.value.__cause__, redis.exceptions.ConnectionError)

    async def test_S103_a_demoted_server_refuses_writes_and_is_used_again_when_promoted(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        entry = await register(directory, ADA, "a1")
        await server.replicaof("127.0.0.1", "1")
        with pytest.raises(DirectoryUnavailable) as caught:
            await register(directory, LOBBY, "b1")
        assert isinstance(caught.value.__cause__, ReadOnlyError)
        writing = asyncio.create_task(register(directory, LOBBY, "b1"))
        await server.replicaof("NO", "ONE")
        assert (await writing).activation == "b1"
        assert await directory.lookup([ADA]) == [entry]

    async def test_S079_a_server_that_wants_replicas_refuses_writes_answers_reads_and_is_used_again_after(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        entry = await register(directory, ADA, "a1")
        await server.config_set("min-replicas-to-write", 1)
        with pytest.raises(DirectoryUnavailable, match="NOREPLICAS"):
            await register(directory, LOBBY, "b1")
        assert await directory.lookup([ADA, LOBBY]) == [entry, None]
        await server.config_set("min-replicas-to-write", 0)
        assert (await register(directory, LOBBY, "b1")).activation == "b1"

    async def test_S103_a_full_server_refuses_registrations_and_lets_rows_go(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        entry = await register(directory, ADA, "a1")
        await server.config_set("maxmemory", 1)
        with pytest.raises(DirectoryUnavailable):
            await register(directory, LOBBY, "b1")
        assert await directory.lookup([ADA, LOBBY]) == [entry, None]
        assert await directory.unregister([entry]) == [True]

    async def test_used_up_epochs_are_an_error_and_give_no_epoch_twice(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        entry = await register(directory, ADA, "a1")
        head = entries_key(ADA).replace(":entries", ":head")
        await server.hset(head, "epoch", str(2**53 - 2))
        last = await register(directory, ADA, "a2", expected=entry)
        assert last.epoch == 2**53 - 1
        with pytest.raises(DirectoryUnavailable, match="used up"):
            await register(directory, ADA, "a3", expected=last)
        assert await directory.lookup([ADA]) == [last]


class TestOpening:
    async def test_a_server_that_will_do_is_opened(self, directory: RedisDirectory) -> None:
        await directory.open()

    async def test_a_user_that_may_not_ask_info_is_refused_at_start_with_the_remedy(
        self, own_redis_server: EmbeddedServer, server: Any
    ) -> None:
        await server.acl_setuser("poor", enabled=True, passwords="+pw", keys="*", commands=["+@all", "-info"])
        directory = RedisDirectory.at(own_redis_server.url.replace("//", "//poor:pw@"), "here")
        with pytest.raises(InvalidSettings, match="within scripts, INFO"):
            await directory.open()
        await directory.close()

    async def test_a_wrong_password_is_not_tried_again(self, own_redis_server: EmbeddedServer, server: Any) -> None:
        directory = RedisDirectory.at(own_redis_server.url.replace("//", "//default:wrong@"), "here")
        await server.acl_setuser("default", enabled=True, passwords="+right")
        with pytest.raises(DirectoryUnavailable, match="AuthenticationError"):
            await directory.open()
        await directory.close()


class TestRowsOfOtherReleases:
    @pytest.mark.parametrize("row", ["2 7 11 10.0.0.1:7000 a1 player/ada", "", "garbage", "1 x 11 h:1 a player/ada"])
    async def test_a_row_that_cannot_be_read_is_named_and_left_alone(
        self, directory: RedisDirectory, server: Any, row: str
    ) -> None:
        await server.hset(entries_key(ADA), "player/ada", row)
        with pytest.raises(DirectoryRowUnreadable, match="player/ada") as caught:
            await directory.lookup([LOBBY, ADA])
        assert list(caught.value.rows) == ["player/ada"]
        with pytest.raises(DirectoryRowUnreadable, match="player/ada"):
            await register(directory, ADA, "a2")
        with pytest.raises(DirectoryRowUnreadable, match="player/ada"):
            await register(directory, ADA, "a2", expected=Entry(ADA, ONE, "a1", 7))
        assert await directory.unregister([Entry(ADA, ONE, "a1", 7)]) == [False]
        assert await server.hget(entries_key(ADA), "player/ada") == row.encode()

    async def test_reading_all_rows_gives_the_readable_ones_before_it_fails(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        lobby = await register(directory, LOBBY, "b1")
        await server.hset(entries_key(ADA), "player/ada", "2 x")
        found: list[Entry] = []

        async def read_all() -> None:
            async for page in directory.entries():
                found.extend(page)

        with pytest.raises(DirectoryRowUnreadable, match="player/ada"):
            await read_all()
        assert found == [lobby]

    async def test_S100_a_row_under_another_grains_name_is_not_believed(
        self, directory: RedisDirectory, server: Any
    ) -> None:
        await server.hset(entries_key(ADA), "player/ada", "1 7 11 10.0.0.1:7000 a1 player/bob")
        with pytest.raises(DirectoryUnavailable, match="player/bob"):
            await directory.lookup([ADA])
