"""The lease on its thread, against a real store."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import redis

from silo.directory.addresses import SiloAddress
from silo.directory.errors import Closed, InvalidSettings, MembershipUnavailable, SiloFenced
from silo.directory.lease_settings import LeaseSettings
from silo.directory.lease_thread import ThreadedMembership
from silo.directory.lease_wire import LeaseWire
from silo.directory.membership import (
    Bury,
    Join,
    Membership,
    Read,
    Renew,
    SiloInfo,
    SiloStatus,
    TableAnswer,
    TableRequest,
    View,
)
from silo.directory.memory_membership import MemoryMembershipTable
from silo.directory.process_identity import process_identity
from silo.directory.redis_connection import open_sync
from silo.directory.redis_hints import RedisHints
from silo.directory.redis_membership import RedisMembershipTable, members_key, views_channel
from silo.directory.turn_right import boot_clock
from silo.embedded import EmbeddedServer
from tests.support.redis_server import standing_still

SETTINGS = LeaseSettings(lease_s=1.0)
WITHIN_S = 10.0


class MovableClock:
    """The boot clock, as a process sees it that was frozen for a while."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return boot_clock() + self.ahead_s


def threaded(url: str, cluster: str, **options: object) -> ThreadedMembership:
    def open_client(timeout_s: float) -> redis.Redis:
        return open_sync(url, timeout_s)

    hints = RedisHints(open_client, cluster, SETTINGS.ask_timeout_s)
    table = RedisMembershipTable(open_client, cluster)
    return ThreadedMembership(table, settings=SETTINGS, hints=hints, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - passed on


def raw(url: str) -> Any:
    """A client for what the table does not do; typed loosely, as redis-py's own types are."""
    return cast("Any", redis.Redis).from_url(url)


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again, within bounds: for facts of which nothing tells."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


def silo(number: int) -> tuple[SiloAddress, SiloInfo]:
    return SiloAddress(f"127.0.0.1:{7000 + number}", 1), SiloInfo(name=f"silo-{number}")


@asynccontextmanager
async def open_silos(*memberships: ThreadedMembership) -> AsyncGenerator[None]:
    try:
        for number, membership in enumerate(memberships):
            await membership.join(*silo(number), bootstrap=True)
            await membership.advance(SiloStatus.ACTIVE)
        yield
    finally:
        for membership in memberships:
            await membership.close()


async def seen(membership: Membership, condition: Callable[[View], bool]) -> View:
    """The first view, now or later, of which the condition holds."""
    changed = asyncio.Event()
    end = membership.subscribe(lambda _: changed.set())
    try:
        async with asyncio.timeout(WITHIN_S):
            while not condition(membership.view):
                changed.clear()
                await changed.wait()
        return membership.view
    finally:
        end()


async def within(awaitable: Awaitable[None], seconds: float = WITHIN_S) -> float:
    started = time.monotonic()
    await asyncio.wait_for(awaitable, seconds)
    return time.monotonic() - started


async def test_a_silo_joins_advances_and_says_goodbye(redis_url: str, cluster_name: str) -> None:
    one, two = threaded(redis_url, cluster_name), threaded(redis_url, cluster_name)
    assert not one.right.is_held()
    async with open_silos(one, two):
        assert one.right.is_held()
        view = await seen(one, lambda view: len(view.active()) == 2)
        assert [row.info.name for row in view.living()] == ["silo-0", "silo-1"]
        await two.goodbye()
        assert not two.right.is_held()
        with pytest.raises(SiloFenced, match="goodbye"):
            await two.right.held()
        await seen(one, lambda view: view.is_dead(silo(1)[0]))
        assert one.right.is_held()


async def test_views_come_in_order_and_once_each(redis_url: str, cluster_name: str) -> None:
    one, two = threaded(redis_url, cluster_name), threaded(redis_url, cluster_name)
    versions: list[int] = []
    one.subscribe(lambda view: versions.append(view.version))
    async with open_silos(one, two):
        await two.advance(SiloStatus.LEAVING)
        await seen(one, lambda view: view.version == 5)
    assert versions == sorted(set(versions))


async def test_a_refresh_is_read_after_it_was_asked_for(redis_url: str, cluster_name: str) -> None:
    one = threaded(redis_url, cluster_name)
    async with open_silos(one):
        other = RedisMembershipTable(lambda timeout_s: open_sync(redis_url, timeout_s), cluster_name)
        for number in range(1, 20):
            version = other.ask(Join(*silo(number)), 5.0).table.version
            assert (await one.refresh()).version >= version
        other.close()


async def test_the_lease_outlives_turns_that_hold_the_event_loop(redis_url: str, cluster_name: str) -> None:
    one, two = threaded(redis_url, cluster_name), threaded(redis_url, cluster_name)
    async with open_silos(one, two):
        until = time.monotonic() + 2.5 * SETTINGS.lease_s
        while time.monotonic() < until:
            pass
        assert one.right.is_held()
        assert one.loop_lag_s > 1.5 * SETTINGS.lease_s
        await one.refresh()
        assert one.view.is_alive(silo(1)[0])


async def test_S027_a_process_that_was_frozen_is_fenced_at_once_and_learns_that_it_is_dead() -> None:
    clock, running = MovableClock(), threading.Event()
    running.set()

    def while_running(_: TableRequest) -> None:
        running.wait(WITHIN_S)

    table = MemoryMembershipTable(before=while_running)
    one = ThreadedMembership(table, settings=SETTINGS, clock=clock)
    async with open_silos(one):
        running.clear()
        clock.ahead_s = 3 * SETTINGS.lease_s
        table.carry_out(Bury(silo(0)[0], "as a verdict would"))
        assert not one.right.is_held()
        running.set()
        await within(one.declared_dead())
        assert not one.right.is_held()
        with pytest.raises(SiloFenced):
            await one.right.held()
        with pytest.raises(SiloFenced):
            await one.advance(SiloStatus.LEAVING)


async def test_S106_while_the_store_stands_still_the_right_ends_and_it_returns_with_the_store(
    own_redis_server: EmbeddedServer, cluster_name: str
) -> None:
    url = own_redis_server.url
    one, two = threaded(url, cluster_name), threaded(url, cluster_name)
    async with open_silos(one, two):
        with standing_still(own_redis_server):
            with pytest.raises(MembershipUnavailable):
                await one.refresh()
            await until(lambda: not one.right.is_held())
        await within(one.right.held())
        await within(two.right.held())
        view = await one.refresh()
        assert len(view.living()) == 2


def wired(url: str, cluster: str, key: bytes | None = b"key") -> ThreadedMembership:
    """One that talks to the others."""
    wire = LeaseWire(
        listen="127.0.0.1", port=0, advertise="127.0.0.1", cluster=cluster, key=key, patience_s=SETTINGS.lease_s
    )
    return threaded(url, cluster, wire=wire)


async def test_while_the_store_stands_still_silos_that_acknowledge_each_other_keep_the_right(
    own_redis_server: EmbeddedServer, cluster_name: str
) -> None:
    url = own_redis_server.url
    silos = [wired(url, cluster_name) for _ in range(3)]
    async with open_silos(*silos):
        await asyncio.gather(*(seen(each, lambda view: len(view.active()) == 3) for each in silos))
        with raw(url) as client:
            client.execute_command("CLIENT", "PAUSE", str(int(4000 * SETTINGS.lease_s)), "ALL")
        until_s = time.monotonic() + 3.5 * SETTINGS.lease_s
        while time.monotonic() < until_s:
            assert all(each.right.is_held() for each in silos)
            await asyncio.sleep(0.01)
        table = RedisMembershipTable(lambda timeout_s: open_sync(url, timeout_s), cluster_name)
        assert [row.dead for row in table.ask(Read(), WITHIN_S).table.rows] == [None] * 3, "once it goes on"
        table.close()


async def test_without_the_token_of_the_cluster_nobody_acknowledges(
    own_redis_server: EmbeddedServer, cluster_name: str
) -> None:
    url = own_redis_server.url
    one, other = wired(url, cluster_name), wired(url, cluster_name, key=b"another")
    async with open_silos(one, other):
        await seen(one, lambda view: len(view.active()) == 2)
        with standing_still(own_redis_server):
            await until(lambda: not one.right.is_held())
        await within(one.right.held())


async def test_R434_a_table_that_redis_lost_is_brought_back_by_those_who_were_in_it(
    redis_url: str, cluster_name: str
) -> None:
    silos = [wired(redis_url, cluster_name) for _ in range(3)]
    async with open_silos(*silos):
        await asyncio.gather(*(seen(each, lambda view: len(view.active()) == 3) for each in silos))
        before = silos[0].view.version
        with raw(redis_url) as client:
            client.delete(members_key(cluster_name))
        for each in silos:
            view = await seen(each, lambda view: view.version > before and not view.is_recovering)
            assert {row.silo for row in view.active()} == {silo(number)[0] for number in range(3)}
            assert each.right.is_held()


class Away(RedisMembershipTable):
    """A table to which the way can be cut."""

    is_cut = False

    def ask(self, request: TableRequest, timeout_s: float) -> TableAnswer:
        if self.is_cut:
            raise MembershipUnavailable("the way is cut")
        return super().ask(request, timeout_s)


async def test_a_silo_that_alone_lost_the_store_is_renewed_by_the_others(redis_url: str, cluster_name: str) -> None:
    others = [wired(redis_url, cluster_name) for _ in range(2)]
    table = Away(lambda timeout_s: open_sync(redis_url, timeout_s), cluster_name)
    wire = LeaseWire(
        listen="127.0.0.1", port=0, advertise="127.0.0.1", cluster=cluster_name, key=b"key", patience_s=1.0
    )
    # its grace is so short that acknowledgements alone would not keep it
    one = ThreadedMembership(table, settings=LeaseSettings(lease_s=SETTINGS.lease_s, grace_s=0.0), wire=wire)
    async with open_silos(one, *others):
        await seen(one, lambda view: len(view.active()) == 3)
        table.is_cut = True
        until_s = time.monotonic() + 3 * SETTINGS.lease_s
        while time.monotonic() < until_s:
            assert one.right.is_held()
            await asyncio.sleep(0.01)
        assert others[0].view.is_alive(silo(0)[0])


async def test_R211_of_three_silos_two_agree_on_the_death_of_the_third(redis_url: str, cluster_name: str) -> None:
    silos = [wired(redis_url, cluster_name) for _ in range(3)]
    async with open_silos(*silos):
        await asyncio.gather(*(seen(each, lambda view: len(view.active()) == 3) for each in silos))
        await silos[2].close()
        started = time.monotonic()
        await seen(silos[0], lambda view: view.is_dead(silo(2)[0]))
        assert time.monotonic() - started < 1.3 * SETTINGS.lease_s + 0.5


async def test_S105_a_change_is_seen_in_time_while_the_subscription_is_dead(
    own_redis_server: EmbeddedServer, cluster_name: str
) -> None:
    url = own_redis_server.url
    one = threaded(url, cluster_name)
    async with open_silos(one):
        with raw(url) as client:

            def subscriptions() -> int:
                return int(client.pubsub_numsub(views_channel(cluster_name))[0][1])

            await until(lambda: subscriptions() == 1)
            client.client_kill_filter(_type="pubsub")
            two = threaded(url, cluster_name)
            await two.join(*silo(1))
            await seen(one, lambda view: view.is_alive(silo(1)[0]))
            await two.close()

            await until(lambda: subscriptions() == 1)


async def test_R118_a_silo_that_stops_renewing_is_declared_dead_in_time(redis_url: str, cluster_name: str) -> None:
    one, two = threaded(redis_url, cluster_name), threaded(redis_url, cluster_name)
    async with open_silos(one, two):
        await seen(one, lambda view: len(view.active()) == 2)
        await two.close()
        assert not two.right.is_held()
        started = time.monotonic()
        await seen(one, lambda view: view.is_dead(silo(1)[0]))
        assert time.monotonic() - started < 1.3 * SETTINGS.lease_s + 0.5


JOINS = """
import asyncio, sys
from silo.directory.addresses import SiloAddress
from silo.directory.lease_settings import LeaseSettings
from silo.directory.lease_thread import ThreadedMembership
from silo.directory.membership import SiloInfo
from silo.directory.process_identity import process_identity
from silo.directory.redis_connection import open_sync
from silo.directory.redis_membership import RedisMembershipTable

async def main():
    table = RedisMembershipTable(lambda timeout_s: open_sync(sys.argv[1], timeout_s), sys.argv[2])
    membership = ThreadedMembership(table, settings=LeaseSettings(lease_s=5.0))
    await membership.join(SiloAddress("127.0.0.1:7999", 1), SiloInfo(name="other", process=process_identity()))
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_neighbour_that_is_killed_is_known_dead_at_once(redis_url: str, cluster_name: str) -> None:
    one = threaded(redis_url, cluster_name)
    address = SiloAddress("127.0.0.1:7999", 1)
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", JOINS, redis_url, cluster_name)
    try:
        await one.join(silo(0)[0], SiloInfo(name="one", process=process_identity()))
        await seen(one, lambda view: view.is_alive(address))
        await one.refresh()
        started = time.monotonic()
        other.kill()
        await seen(one, lambda view: view.is_dead(address))
        assert time.monotonic() - started < 0.5
    finally:
        await other.wait()
        await one.close()


async def test_nothing_is_left_after_a_close(redis_url: str, cluster_name: str) -> None:
    before = {thread.name for thread in threading.enumerate()}
    one = threaded(redis_url, cluster_name)
    async with open_silos(one):
        assert "silo-lease" in {thread.name for thread in threading.enumerate()}
    assert {thread.name for thread in threading.enumerate()} <= before, "those of earlier tests may have ended since"
    assert not one.right.is_held()
    with pytest.raises(Closed):
        await one.refresh()
    with raw(redis_url) as client:
        assert client.pubsub_numsub(views_channel(cluster_name))[0][1] == 0


async def test_S119_a_join_without_a_store_is_tried_for_a_bounded_time(cluster_name: str) -> None:
    one = ThreadedMembership(
        RedisMembershipTable(lambda timeout_s: open_sync("redis://127.0.0.1:1", timeout_s), cluster_name),
        settings=LeaseSettings(lease_s=0.25),
    )
    with pytest.raises(MembershipUnavailable):
        await one.join(*silo(0))
    await one.close()


async def test_S119_a_join_that_can_never_succeed_fails_at_once(own_redis_server: EmbeddedServer) -> None:
    one = threaded(own_redis_server.url.replace("redis://", "redis://nobody:wrong@"), "any")
    try:
        with pytest.raises(InvalidSettings, match="refuses"):
            await one.join(*silo(0))
    finally:
        await one.close()


class Broken(MemoryMembershipTable):
    """A table with a bug in it."""

    broken = False

    def ask(self, request: TableRequest, timeout_s: float) -> TableAnswer:
        if self.broken:
            raise ZeroDivisionError
        return super().ask(request, timeout_s)


async def test_S028_a_lease_that_fails_is_as_fatal_as_death() -> None:
    table = Broken()
    one = ThreadedMembership(table, settings=SETTINGS)
    async with open_silos(one):
        table.broken = True
        with pytest.raises(ZeroDivisionError):
            await within(one.declared_dead())
        assert not one.right.is_held()
        with pytest.raises(Closed):
            await one.refresh()


async def test_a_loop_that_never_comes_back_loses_its_lease() -> None:
    table = MemoryMembershipTable()
    stuck = threading.Event()
    one = ThreadedMembership(table, settings=SETTINGS, loop_stuck_after_s=1.5, on_loop_stuck=lambda _: stuck.set())
    async with open_silos(one):
        assert stuck.wait(WITHIN_S), "this blocks the event loop"
        with pytest.raises(RuntimeError, match="stuck"):
            await within(one.declared_dead())
        assert not one.right.is_held()


async def test_a_renewal_never_waits_behind_other_requests() -> None:
    asked: list[TableRequest] = []
    table = MemoryMembershipTable(before=asked.append)
    one = ThreadedMembership(table, settings=SETTINGS)
    async with open_silos(one):
        await asyncio.gather(*(one.refresh() for _ in range(20)))
    assert any(isinstance(request, Renew) for request in asked)
    assert len(asked) < 12, "reads that wait are answered by one"


async def test_a_row_that_was_deleted_ends_that_silo_alone(redis_url: str, cluster_name: str) -> None:
    one, two = threaded(redis_url, cluster_name), threaded(redis_url, cluster_name)
    async with open_silos(one, two):
        with raw(redis_url) as client:
            client.hdel(members_key(cluster_name), str(silo(0)[0]))
        await within(one.declared_dead())
        assert not one.right.is_held()
        assert two.right.is_held()
