"""Silos on several servers: a failover behind Sentinel, a Redis Cluster whose slots move, one of its masters away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path

import pytest

from silo.client import Client
from silo.directory.addresses import Entry, GrainId
from silo.directory.directory_scripts import RUN_JUMP, bucket_keys, bucket_of
from silo.directory.errors import NotExecuted, SiloError
from silo.directory.redis_directory import RedisDirectory
from silo.directory.redis_membership import members_key
from silo.embedded import EmbeddedServer
from silo.reference import with_hint, with_timeout
from silo.testing.history import PATIENT_S, Violation
from silo.testing.witness import Ended, What
from tests.chaos.census import disagreements
from tests.process.grains import Counter, Vault
from tests.process.stage import GRAINS as GRAINS_MODULE
from tests.process.stage import Stage
from tests.process.test_persistence import Depositor
from tests.support.redis_server import ask_until, standing_still
from tests.support.redis_topology import (
    SERVICE,
    Replicated,
    SlotCluster,
    ask,
    is_in_role,
    replicated,
    slot_cluster,
    slot_of,
)

pytestmark = pytest.mark.redis

SILOS = ("silo-1", "silo-2", "silo-3")
CENSUS_MODULE = "tests.chaos.grains"
GRAINS = 60
VAULTS = 4
RATE = 150.0
"""Calls per second."""
LEASE_S = 1.5
GRACE_S = 12.0
STUCK_S = 4.0
"""Longer than a lease and than the timeout of the Redis Cluster's nodes, and shorter than lease and grace."""
HELD_S = 0.5
"""For how long a slot is on its way: longer than the time between two renewals."""
PAUSE_MAX_S = 5.0
"""Of a grain that moves while its row's slot does: what a silo waits for may be on its way, and is told of."""
NEW_DEADLINE_S = 2.0
STARTED_WITHIN_S = 5.0
"""What a call may take to a grain of a silo that has just started, while one master is away."""
AGREE_WITHIN_S = 10.0
MOVED_WITHIN_S = 10.0
DIRECTORY_SLOTS = 4
"""Slots of directory buckets that are moved, beside that of the membership table."""


@pytest.fixture
def replicated_servers(tmp_path: Path) -> Iterator[Replicated]:
    with replicated(tmp_path, sentinels=3) as servers:
        yield servers


@pytest.fixture
def cluster_servers() -> Iterator[SlotCluster]:
    """Three masters with slots, and one that has none."""
    with slot_cluster(masters=3, empty=1) as servers:
        yield servers


@contextlib.asynccontextmanager
async def under_load(redis: str, cluster: str, folder: Path) -> AsyncGenerator[tuple[Stage, Client]]:
    """Three silos that host counters, called without a break from another process, and vaults.

    At the end: every call was answered, no promise is broken, the same incarnations are active, no activation was lost
    or made that was not asked for, and the directory says what the catalogs do.
    """
    settings = {"lease.lease_s": LEASE_S, "lease.grace_s": GRACE_S}
    stage = Stage(redis, cluster, folder, settings, modules=(GRAINS_MODULE, CENSUS_MODULE))
    async with stage, stage.client(role="admin") as client:
        await stage.start(*SILOS)
        await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(GRAINS)))
        await asyncio.gather(*(client.grain(Vault, str(key)).put(0) for key in range(VAULTS)))
        silos = {row.info.name: str(row.silo) for row in (await stage.view()).active()}
        assert set(silos) == set(SILOS)
        await stage.caller("caller-1", grains=GRAINS, rate=RATE)

        yield stage, client

        view = await stage.until(lambda view: len(view.active()) == len(SILOS), 10.0)
        assert {row.info.name: str(row.silo) for row in view.table.rows} == silos, "nobody was declared dead"
        ended = await stage.stop_callers()
        events = stage.assert_promises_kept()
        assert ended.total() == ended[Ended.VALUE], ended
        assert not [event for event in events if event.what is What.CLOSED and event.because != "migrating"]
        opened_by_calls = [event.grain for event in events if event.what is What.OPENED and event.because == "call"]
        assert len(set(opened_by_calls)) == len(opened_by_calls), "a grain that was there was activated again"
        assert not await agreed(client, stage, silos)


async def agreed(client: Client, stage: Stage, silos: dict[str, str]) -> list[Violation]:
    """What directory and catalogs still disagree about after a while."""
    deadline = asyncio.get_running_loop().time() + AGREE_WITHIN_S
    while True:
        found = await disagreements(client, stage.redis, stage.cluster_name, silos)
        if not found or asyncio.get_running_loop().time() > deadline:
            return found


async def entries_of(stage: Stage) -> dict[GrainId, Entry]:
    """All rows of the directory."""
    directory = RedisDirectory.at(stage.redis, stage.cluster_name)
    try:
        return {entry.grain: entry async for page in directory.entries() for entry in page}
    finally:
        await directory.close()


async def moved_around(client: Client, keys: Iterable[str]) -> float:
    """Move each of these counters to each silo in turn. Returns the longest pause, in seconds."""
    longest_s = 0.0
    for key in keys:
        counter = client.grain(Counter, key)
        outcomes = [await client.migrate(counter, to=name) for name in SILOS]
        assert sum(outcome.moved for outcome in outcomes) >= len(SILOS) - 1, list(map(str, outcomes))
        longest_s = max(longest_s, *(outcome.pause_s for outcome in outcomes))
    return longest_s


@contextlib.asynccontextmanager
async def always_moving(client: Client, keys: Iterable[str]) -> AsyncGenerator[None]:
    """The same, again and again beside the block."""
    enough = asyncio.Event()

    async def move() -> None:
        longest_s = 0.0
        while not enough.is_set():
            longest_s = max(longest_s, await moved_around(client, keys))
        print(f"\nthe longest pause of a move was {longest_s:.2f} s")
        assert longest_s < PAUSE_MAX_S

    async with asyncio.TaskGroup() as group:
        group.create_task(move())
        yield
        enough.set()


@contextlib.asynccontextmanager
async def deposits(client: Client) -> AsyncGenerator[None]:
    """Writes to all vaults beside the block; what was acknowledged is there afterwards, and is there once."""
    vaults = [with_timeout(client.grain(Vault, str(key)), PATIENT_S) for key in range(VAULTS)]
    depositors = [Depositor(vault) for vault in vaults]
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for depositor in depositors:
            group.create_task(depositor.run(enough))
        yield
        enough.set()
    for depositor, vault in zip(depositors, vaults, strict=True):
        first, *found = await vault.look()
        assert first == 0, "what was there before"
        depositor.check(found)
        assert depositor.stored


async def test_S103_a_failover_to_the_replica_stops_no_existing_activation_and_loses_none(
    replicated_servers: Replicated, cluster_name: str, tmp_path: Path
) -> None:
    """The master is killed, and its replica takes over; it comes back as a replica, and is made the master again."""
    servers = replicated_servers
    async with under_load(servers.url, cluster_name, tmp_path) as (stage, client):
        before = await entries_of(stage)
        await asyncio.to_thread(servers.await_copies)
        killed_at = stage.now()
        await asyncio.to_thread(servers.master.kill)
        async with deposits(client):
            patient = asyncio.create_task(with_timeout(client.grain(Counter, "patient"), PATIENT_S).read())
            await ended_in_time(client.grain(Counter, "hurried"))
            assert await patient == 0
            assert is_in_role(servers.replica, "master")
            promoted_after_s = stage.now() - killed_at
            await asyncio.to_thread(servers.master.restart)  # empty, and a master until the sentinels see it
            await moved_around(client, (str(key) for key in range(5)))
            fresh = [client.grain(Counter, f"fresh-{number}") for number in range(40)]
            assert await asyncio.gather(*(counter.read() for counter in fresh)) == [0] * len(fresh)
            await asyncio.to_thread(ask_until, lambda: is_in_role(servers.master, "slave"))
        await asyncio.to_thread(servers.await_copies, servers.replica)
        await asyncio.to_thread(ask, f"redis://{servers.sentinels[0]}", "SENTINEL FAILOVER", SERVICE)
        await asyncio.to_thread(ask_until, lambda: is_in_role(servers.master, "master"))
        # Until it has heard of it the other one is a master, too: what it still takes is lost.
        await asyncio.to_thread(ask_until, lambda: is_in_role(servers.replica, "slave"))
        await moved_around(client, ["0"])
        after = await entries_of(stage)
        assert set(before) <= set(after)
        for grain in (GrainId("counter", str(key)) for key in range(5)):
            assert after[grain].epoch > before[grain].epoch + RUN_JUMP
        print(f"\na new grain was answered {promoted_after_s:.2f} s after its master was killed")


async def ended_in_time(counter: Counter) -> None:
    """One call to a new grain: it is answered, or fails as not executed, within its deadline."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with contextlib.suppress(NotExecuted):
        assert await with_timeout(counter, NEW_DEADLINE_S).read() == 0
    assert loop.time() - began < NEW_DEADLINE_S + 1.0


def key_in(servers: SlotCluster, server: EmbeddedServer, cluster: str, name: str) -> str:
    """A key like that of a counter whose directory bucket lies on this server."""
    keys = (f"{name}-{number}" for number in itertools.count())
    return next(key for key in keys if servers.owner(slot_of_counter(cluster, key)) is server)


def slot_of_counter(cluster: str, key: str) -> int:
    return slot_of(bucket_keys(cluster)[bucket_of(f"counter/{key}")][0])


async def test_S103_slots_of_the_directory_and_of_the_membership_table_are_moved_live_and_no_call_fails(
    cluster_servers: SlotCluster, cluster_name: str, tmp_path: Path
) -> None:
    """To another master, and to one that had none: ASK, MOVED and NOSCRIPT are answered to silos and clients alike."""
    servers = cluster_servers
    keys = [str(key) for key in range(DIRECTORY_SLOTS)]
    vault_slot = slot_of(bucket_keys(cluster_name)[bucket_of("vault/0")][0])
    slots = [slot_of(members_key(cluster_name)), *(slot_of_counter(cluster_name, key) for key in keys), vault_slot]
    async with under_load(servers.url, cluster_name, tmp_path) as (stage, client):
        async with deposits(client), always_moving(client, keys):
            for slot, to_new in zip(dict.fromkeys(slots), itertools.cycle([True, False])):
                owner = await asyncio.to_thread(servers.owner, slot)
                others = servers.servers[3:] if to_new else servers.servers[:3]
                to = next(server for server in others if server is not owner)
                source = await asyncio.to_thread(servers.begin_move, slot, to)
                await asyncio.to_thread(servers.carry_keys, slot, source, to)
                await asyncio.sleep(HELD_S)
                await asyncio.to_thread(servers.end_move, slot, to)
        assert len(await entries_of(stage)) >= GRAINS + VAULTS
        errors = await asyncio.to_thread(servers.errors)
        print(f"\nthe servers answered {dict(errors)}")
        assert min(errors["ASK"], errors["MOVED"], errors["NOSCRIPT"]) > 0


@pytest.mark.parametrize("has_members", [True, False], ids=["with_the_membership_table", "without_it"])
async def test_S103_a_master_stands_still_and_comes_back_and_existing_activations_do_not_care(
    cluster_servers: SlotCluster, cluster_name: str, tmp_path: Path, has_members: bool
) -> None:
    servers = cluster_servers
    owner = servers.owner(slot_of(members_key(cluster_name)))
    stuck = owner if has_members else next(server for server in servers.servers[:3] if server is not owner)
    well = next(server for server in servers.servers[:3] if server not in (stuck, owner))
    in_stuck, in_well = (key_in(servers, server, cluster_name, "new") for server in (stuck, well))
    async with under_load(servers.url, cluster_name, tmp_path) as (stage, client):
        with standing_still(stuck):
            ends = asyncio.get_running_loop().time() + STUCK_S
            with pytest.raises(NotExecuted):
                await with_timeout(client.grain(Counter, in_stuck), NEW_DEADLINE_S).read()
            assert await with_timeout(client.grain(Counter, in_well), STUCK_S).read() == 0
            await asyncio.sleep(ends - asyncio.get_running_loop().time())
        async with asyncio.timeout(MOVED_WITHIN_S):
            while True:
                with contextlib.suppress(SiloError):
                    assert await with_timeout(client.grain(Counter, in_stuck), NEW_DEADLINE_S).read() == 0
                    break
        await moved_around(client, ["0", "1", in_stuck, in_well])
        assert len(await entries_of(stage)) >= GRAINS + VAULTS


async def test_S103_a_silo_that_starts_while_a_master_is_away_serves_at_once_what_lies_on_the_others(
    cluster_servers: SlotCluster, cluster_name: str, tmp_path: Path
) -> None:
    """It says what it serves to each master by itself, and to the one that is away when that is back."""
    servers = cluster_servers
    owner = servers.owner(slot_of(members_key(cluster_name)))
    stuck, well = (server for server in servers.servers[:3] if server is not owner)
    settings = {"lease.lease_s": LEASE_S, "lease.grace_s": GRACE_S}
    stage = Stage(servers.url, cluster_name, tmp_path, settings, modules=(GRAINS_MODULE, CENSUS_MODULE))
    async with stage, stage.client(role="admin") as client:
        await stage.start(*SILOS[:2])
        old = [str(key) for key in range(GRAINS)]
        await asyncio.gather(*(client.grain(Counter, key).read() for key in old))

        def late(server: EmbeddedServer, name: str) -> Counter:
            return with_hint(client.grain(Counter, key_in(servers, server, cluster_name, name)), SILOS[2])

        in_owner, in_well, in_stuck = late(owner, "late"), late(well, "late"), late(stuck, "late")
        with standing_still(stuck):
            await stage.start(SILOS[2])
            for each in (in_owner, in_well):
                assert await with_timeout(each, STARTED_WITHIN_S).read() == 0
            with pytest.raises(NotExecuted):
                await with_timeout(in_stuck, NEW_DEADLINE_S).read()
        assert await with_timeout(in_stuck, AGREE_WITHIN_S).read() == 0
        assert await asyncio.gather(*(client.grain(Counter, key).read() for key in old)) == [0] * GRAINS
        silos = {row.info.name: str(row.silo) for row in (await stage.view()).active()}
        opened = [event.silo for event in stage.events() if event.what is What.OPENED]
        assert opened[GRAINS:] == [silos[SILOS[2]]] * 3
        assert not await agreed(client, stage, silos)
