"""A Redis Cluster of several masters: slots that move, masters that stand still, and none that answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Claim as BucketClaim
from silo.directory.contract import Inquiry, Registration
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, RUN_JUMP, bucket_keys, bucket_of
from silo.directory.errors import DirectoryUnavailable, MembershipUnavailable
from silo.directory.lease_asker import TableAsker
from silo.directory.lease_events import Answered, Failed
from silo.directory.members_reader import MembersReader
from silo.directory.membership import Join, Read, Rejoin, Renew, SiloInfo, SiloStatus, TableStatus
from silo.directory.redis_connection import open_redis, open_sync
from silo.directory.redis_directory import RedisDirectory
from silo.directory.redis_hints import RedisHints
from silo.directory.redis_membership import RedisMembershipTable, members_key
from silo.persistence.contract import NO_ETAG, Change, Claim, StateBody, StoredState, Written
from silo.persistence.redis_storage import COMMANDS_IN_FLIGHT_MAX, RedisStorage
from silo.persistence.storage_scripts import state_key
from tests.support.redis_server import ask_until, standing_still
from tests.support.redis_topology import SlotCluster, ask, slot_cluster, slot_of
from tests.support.waiting import until

pytestmark = pytest.mark.redis

ADA = GrainId("player", "ada")
ONE = SiloAddress("10.0.0.1:7000", 1)
TWO = SiloAddress("10.0.0.2:7000", 2)
AT_ONCE = 8
"""Commands at once, each by a connection of its own."""
TIMEOUT_S = 1.0
FAILS_WITHIN_S = 5.0
OTHERS_READ = 20
"""How many reads of masters that answer have to be over before those of the one that does not are given up."""


@pytest.fixture(scope="module")
def servers() -> Iterator[SlotCluster]:
    """Three masters with slots, and two that have none until a test gives them some."""
    with slot_cluster(masters=3, empty=2) as servers:
        yield servers


@pytest.fixture
async def directory(servers: SlotCluster, cluster_name: str) -> AsyncIterator[RedisDirectory]:
    opened = RedisDirectory.at(servers.url, cluster_name)
    await opened.open()
    yield opened
    await opened.close()


def slot_of_grain(grain: GrainId, cluster: str) -> int:
    return slot_of(bucket_keys(cluster)[bucket_of(str(grain))][0])


def another(servers: SlotCluster, slot: int) -> Any:
    """A master that has slots, and not this one."""
    return next(server for server in servers.servers[:3] if server is not servers.owner(slot))


def empty_master(servers: SlotCluster, _: int) -> Any:
    """A master that has no slots."""
    return servers.without_slots()[0]


def table_at(url: str, cluster: str) -> RedisMembershipTable:
    return RedisMembershipTable(partial(open_sync, url), cluster)


def hints_at(url: str, cluster: str) -> RedisHints:
    return RedisHints(partial(open_sync, url), cluster, TIMEOUT_S)


async def registered(directory: RedisDirectory, expected: Entry | None, silo: SiloAddress, activation: str) -> Entry:
    (entry,) = await directory.register([Registration(ADA, silo, activation, expected=expected)])
    assert entry is not None
    return entry


@pytest.mark.parametrize("target", [another, empty_master])
async def test_S103_a_slot_is_moved_under_the_directory_and_every_answer_is_right(
    directory: RedisDirectory,
    servers: SlotCluster,
    cluster_name: str,
    target: Callable[[SlotCluster, int], Any],
) -> None:
    """ASK by whichever connection, ASK to a master without slots, scripts that the new owner has never seen, MOVED."""
    slot = slot_of_grain(ADA, cluster_name)
    to = target(servers, slot)
    first = await registered(directory, None, ONE, "a1")
    source = servers.begin_move(slot, to)
    try:
        assert await asyncio.gather(*(directory.lookup([ADA]) for _ in range(AT_ONCE))) == [[first]] * AT_ONCE
        assert servers.carry_keys(slot, source, to) == 2
        for _ in range(AT_ONCE):  # as many connections as there are commands at once, and then one after the other
            assert await asyncio.gather(*(directory.lookup([ADA]) for _ in range(AT_ONCE))) == [[first]] * AT_ONCE
        second = await registered(directory, first, TWO, "a2")
        assert second == Entry(ADA, TWO, "a2", first.epoch + RUN_JUMP + 1)
    finally:
        servers.end_move(slot, to)
    assert await directory.lookup([ADA]) == [second]
    assert await registered(directory, second, ONE, "a3") == Entry(ADA, ONE, "a3", second.epoch + 1)
    assert await directory.unregister([second]) == [False]
    errors = servers.errors()
    assert errors["ASK"] > AT_ONCE
    assert errors["MOVED"] > 0
    assert errors["NOSCRIPT"] > 0


@pytest.mark.parametrize("target", [another, empty_master])
def test_S103_the_membership_tables_slot_is_moved_and_every_request_is_answered(
    servers: SlotCluster, cluster_name: str, target: Callable[[SlotCluster, int], Any]
) -> None:
    slot = slot_of(members_key(cluster_name))
    to = target(servers, slot)
    with contextlib.closing(table_at(servers.url, cluster_name)) as table:
        joined = table.ask(Join(ONE, SiloInfo(name="one")), TIMEOUT_S)
        source = servers.begin_move(slot, to)
        try:
            servers.carry_keys(slot, source, to)
            lost = table.ask(Renew(ONE, joined.table.version, 1, joined.table.id), TIMEOUT_S)
            back = table.ask(Rejoin(ONE, SiloInfo(name="one"), SiloStatus.ACTIVE, joined.table), TIMEOUT_S)
        finally:
            servers.end_move(slot, to)
        (row,) = back.table.rows
        again = table.ask(Renew(ONE, back.table.version, row.seq, back.table.id), TIMEOUT_S)
    assert lost.status is TableStatus.LOST, "on another server: rows may have been lost on the way"
    assert [answer.status for answer in (joined, back, again)] == [TableStatus.OK] * 3
    assert again.table.rows[0].seq == row.seq + 1
    assert again.table.run != joined.table.run, "what was observed at the old one counts no more"


async def test_a_change_is_hinted_at_though_the_tables_slot_has_moved(servers: SlotCluster, cluster_name: str) -> None:
    slot = slot_of(members_key(cluster_name))
    to = another(servers, slot)
    heard: list[int] = []
    redis = open_redis(servers.url)
    reader = MembersReader(redis, cluster_name, read_every_s=60.0)
    reader.subscribe(lambda view: heard.append(view.version))
    hints = hints_at(servers.url, cluster_name)
    table = table_at(servers.url, cluster_name)
    hints.tend(0.0)
    following = asyncio.create_task(reader.follow())
    try:
        await asyncio.to_thread(ask_until, lambda: sum(subscribers(servers, cluster_name)) == 2)
        table.ask(Join(ONE, SiloInfo(name="one")), TIMEOUT_S)
        await until(lambda: bool(heard))
        await until(lambda: hints.read() == 1)  # it may have subscribed at another server, and hear later
        source = servers.begin_move(slot, to)
        servers.carry_keys(slot, source, to)
        servers.end_move(slot, to)
        version = table.ask(Join(TWO, SiloInfo(name="two")), TIMEOUT_S).table.version
        await until(lambda: heard[-1] == version)
        await until(lambda: hints.read() == version)
    finally:
        following.cancel()
        await asyncio.wait([following])
        hints.close()
        table.close()
        await redis.aclose()


def subscribers(servers: SlotCluster, cluster: str) -> list[int]:
    return [ask(server.url, "PUBSUB NUMSUB", f"silo:{{{cluster}}}:views")[0][1] for server in servers.servers]


async def test_a_slot_is_moved_under_stored_states(servers: SlotCluster, cluster_name: str) -> None:
    slot = slot_of(state_key(cluster_name, ADA))
    to = another(servers, slot)
    storage = RedisStorage.at(servers.url, cluster_name)
    claim = Claim(ADA, 5, "a1")

    async def write(expected: str, etag: str) -> None:
        change = Change("profile", expected, expected != NO_ETAG, etag, StateBody(1, 1, etag.encode()))
        assert await storage.write(claim, change) == Written()

    try:
        await write(NO_ETAG, "e1")
        source = servers.begin_move(slot, to)
        servers.carry_keys(slot, source, to)
        await write("e1", "e2")
        servers.end_move(slot, to)
        await write("e2", "e3")
        found = await storage.read(claim, ["profile"])
        assert isinstance(found, list)
        assert found[0].body == StateBody(1, 1, b"e3")
    finally:
        await storage.close()


async def test_a_master_that_stands_still_keeps_only_its_own_states_waiting(
    servers: SlotCluster, cluster_name: str
) -> None:
    stuck = servers.servers[0]
    claims = [Claim(GrainId("k", str(number)), 5, "a1") for number in range(300)]
    of_stuck = [claim for claim in claims if servers.owner(slot_of(state_key(cluster_name, claim.grain))) is stuck]
    assert len(of_stuck) > 2 * COMMANDS_IN_FLIGHT_MAX
    storage = RedisStorage.at(servers.url, cluster_name)
    try:
        assert await storage.read(claims[0], ["profile"]) == [StoredState()]
        with standing_still(stuck):
            late = [asyncio.create_task(storage.read(claim, ["profile"])) for claim in of_stuck]
            async with asyncio.timeout(TIMEOUT_S):
                for claim in [claim for claim in claims if claim not in of_stuck][:OTHERS_READ]:
                    assert await storage.read(claim, ["profile"]) == [StoredState()]
            assert not any(read.done() for read in late)
        await asyncio.wait(late)
    finally:
        await storage.close()


async def test_a_master_that_stands_still_fails_its_own_buckets_alone(
    directory: RedisDirectory, servers: SlotCluster, cluster_name: str
) -> None:
    """In one batch: those of the others are answered, and a batch of theirs alone does not wait."""
    grains = [GrainId("k", str(number)) for number in range(60)]
    stuck = servers.servers[0]
    of_stuck = [servers.owner(slot_of_grain(grain, cluster_name)) is stuck for grain in grains]
    assert 5 < sum(of_stuck) < 55
    loop = asyncio.get_running_loop()
    with standing_still(stuck):
        began = loop.time()
        with pytest.raises(DirectoryUnavailable):
            await directory.register([Registration(grain, ONE, "a1") for grain in grains])
        assert loop.time() - began < FAILS_WITHIN_S
        others = [grain for grain, is_of_stuck in zip(grains, of_stuck, strict=True) if not is_of_stuck]
        began = loop.time()
        rows = await directory.lookup(others)
        assert None not in rows, "the batch was carried out where it could be"
        assert loop.time() - began < TIMEOUT_S
    async with asyncio.timeout(FAILS_WITHIN_S):
        while True:
            with contextlib.suppress(DirectoryUnavailable):
                entries = await directory.register([Registration(grain, ONE, "a1") for grain in grains])
                break
    assert {entry.activation for entry in entries if entry is not None} == {"a1"}
    assert None not in entries


async def test_a_slot_that_nobody_has_is_unavailable_alone(cluster_name: str) -> None:
    with slot_cluster(masters=1) as servers:
        slot = slot_of_grain(ADA, cluster_name)
        ask(servers.servers[0].url, "CLUSTER DELSLOTS", slot)
        directory = RedisDirectory.at(servers.url, cluster_name)
        other = next(
            grain for grain in (GrainId("k", str(n)) for n in range(9)) if bucket_of(str(grain)) != bucket_of(str(ADA))
        )
        try:
            with pytest.raises(DirectoryUnavailable):
                await directory.lookup([ADA])
            assert await directory.lookup([other]) == [None]
        finally:
            await directory.close()


async def test_a_cluster_of_which_no_server_answers_is_unavailability_and_no_crash(cluster_name: str) -> None:
    """For the directory, for who reads the members, and for the lease, whose thread must outlive it."""
    with slot_cluster(masters=1) as servers:
        url = servers.url
    directory = RedisDirectory.at(url, cluster_name)
    with pytest.raises(DirectoryUnavailable):
        await directory.lookup([ADA])
    await directory.close()
    redis = open_redis(url)
    with pytest.raises(MembershipUnavailable):
        await MembersReader(redis, cluster_name).read()
    await redis.aclose()

    told: list[Answered | Failed] = []
    failed: list[BaseException] = []
    table = table_at(url, cluster_name)
    asker = TableAsker(table, TIMEOUT_S, lambda: 0.0, told.append, failed.append)
    asker.start()
    asker.ask(Read())
    await until(lambda: bool(told or failed))
    asker.stop()
    await asyncio.to_thread(asker.join)
    assert not failed
    assert isinstance(told[0], Failed)
    assert isinstance(told[0].because, MembershipUnavailable)
    hints = hints_at(url, cluster_name)
    hints.tend(0.0)
    assert hints.fileno() is None


async def test_S100_cancelled_commands_leave_no_answer_to_the_next_ones(
    directory: RedisDirectory, servers: SlotCluster
) -> None:
    grains = [GrainId("k", str(number)) for number in range(200)]
    entries = await directory.register([Registration(grain, ONE, f"a-{grain.key}") for grain in grains])

    async def look(number: int) -> None:
        looking = asyncio.create_task(directory.lookup([grains[number]]))
        if number % 2:
            await asyncio.sleep(number % 7 * 0.0005)
            looking.cancel()
        try:
            assert await looking == [entries[number]]
        except asyncio.CancelledError:
            assert number % 2

    for _ in range(3):
        await asyncio.gather(*(look(number) for number in range(len(grains))))


async def test_S101_more_commands_at_once_than_connections_wait_for_one(servers: SlotCluster) -> None:
    client = open_redis(f"{servers.url}?max_connections=33")
    key = "{one}:slot"
    try:
        await asyncio.gather(*(client.execute_command("HGET", key, str(number)) for number in range(500)))
        clients = ask(servers.owner(slot_of(key)).url, "CLIENT LIST")
        assert len([each for each in clients if each["cmd"] == "hget"]) <= 32
    finally:
        await client.aclose()


@pytest.mark.parametrize("number", range(3))
async def test_S103_clients_begin_though_any_one_of_the_masters_stands_still(
    servers: SlotCluster, cluster_name: str, number: int
) -> None:
    stuck = servers.servers[number]
    grains = (GrainId("player", str(number)) for number in itertools.count())
    well = next(grain for grain in grains if servers.owner(slot_of_grain(grain, cluster_name)) is not stuck)
    key = bucket_keys(cluster_name)[bucket_of(str(well))][0]
    directory, storage = RedisDirectory.at(servers.url, cluster_name), RedisStorage.at(servers.url, cluster_name)
    with standing_still(stuck):
        for opened in (directory, storage):
            await opened.open()
        assert await directory.lookup([well]) == [None]
        blocking = await asyncio.to_thread(open_sync, servers.url, TIMEOUT_S)
        assert await asyncio.to_thread(blocking.eval, "return KEYS[1]", 1, key) == key.encode()
    blocking.close()
    for opened in (directory, storage):
        await opened.close()


async def test_R434_what_is_claimed_of_a_master_that_answers_counts_though_another_does_not(
    servers: SlotCluster, directory: RedisDirectory
) -> None:
    bucket_at = {directory.part_of(bucket): bucket for bucket in range(DIRECTORY_BUCKETS)}
    stuck = servers.servers[0]
    away = f"127.0.0.1:{stuck.port}"
    claims = [BucketClaim(bucket, ONE, new_life="life") for bucket in bucket_at.values()]
    with standing_still(stuck):
        standings = await directory.claim(claims)
        lives = await directory.inquire([Inquiry(claim.bucket) for claim in claims])
        with pytest.raises(DirectoryUnavailable):
            await directory.claim([BucketClaim(bucket_at[away], ONE, new_life="life")])
    assert [standing is None for standing in standings] == [part == away for part in bucket_at]
    assert [standing and standing.life for standing in standings] == [each and each.life for each in lives]
