"""The lease on the event loop, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.errors import Closed, MembershipUnavailable, SiloFenced
from silo.directory.loop_membership import LoopMembership
from silo.directory.membership import SiloInfo, SiloStatus, TableRequest, View
from silo.directory.memory_membership import MemoryMembershipTable
from silo.testing.nodes import NodeClock
from silo.testing.virtual_time import VirtualTimeLoop, run


def silo(number: int) -> tuple[SiloAddress, SiloInfo]:
    return SiloAddress(f"10.0.0.{number}:7000", 1), SiloInfo(name=f"silo-{number}")


async def joined(table: MemoryMembershipTable, number: int, **options: object) -> LoopMembership:
    membership = LoopMembership(table, follow=table.follow, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - passed on
    await membership.join(*silo(number))
    await membership.advance(SiloStatus.ACTIVE)
    return membership


async def seen(membership: LoopMembership, condition: Callable[[View], bool]) -> None:
    changed = asyncio.Event()
    end = membership.subscribe(lambda _: changed.set())
    while not condition(membership.view):
        changed.clear()
        await changed.wait()
    end()


async def closed(*memberships: LoopMembership) -> None:
    for membership in memberships:
        await membership.close()


def test_silos_see_each_other_come_and_go() -> None:
    async def main() -> None:
        table = MemoryMembershipTable()
        one, two = await joined(table, 1), await joined(table, 2)
        await seen(one, lambda view: len(view.active()) == 2)
        await two.goodbye()
        await seen(one, lambda view: view.is_dead(silo(2)[0]))
        assert one.right.is_held()
        assert not two.right.is_held()
        await closed(one, two)

    run(main, seed=1)


def test_a_silo_that_ends_without_a_word_is_declared_dead_within_1_3_leases() -> None:
    async def main() -> None:
        table = MemoryMembershipTable()
        one, two = await joined(table, 1), await joined(table, 2)
        await asyncio.sleep(10)
        await two.close()
        ended_at = asyncio.get_running_loop().time()
        await seen(one, lambda view: view.is_dead(silo(2)[0]))
        assert 4.4 < asyncio.get_running_loop().time() - ended_at < 6.6
        assert one.silence_s(silo(1)[0]) == 0.0
        await closed(one)

    run(main, seed=1)


def test_S027_a_paused_silo_wakes_up_fenced_and_learns_that_it_is_dead() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        table = MemoryMembershipTable()
        one = await joined(table, 1)
        node = loop.node("two")
        clock = NodeClock(loop.time, rate=1.03, offset_s=5e5)
        two = await node.create_task(joined(table, 2, clock=clock))
        dead = node.create_task(two.declared_dead())
        node.pause()
        await seen(one, lambda view: view.is_dead(silo(2)[0]))
        await asyncio.sleep(10)
        assert not two.right.is_held()
        node.resume()
        assert not two.right.is_held()
        await dead
        with pytest.raises(SiloFenced):
            await two.right.held()
        await closed(one, two)

    run(main, seed=3)


def test_S106_an_outage_of_the_store_pauses_and_kills_nobody() -> None:
    async def main() -> None:
        table = MemoryMembershipTable()
        up = asyncio.Event()
        up.set()

        async def while_up(_: TableRequest) -> None:
            await up.wait()

        one, two = await joined(table, 1, before=while_up), await joined(table, 2, before=while_up)
        up.clear()
        with pytest.raises(MembershipUnavailable):
            await one.refresh()
        await asyncio.sleep(20)
        assert not one.right.is_held()
        up.set()
        await asyncio.gather(one.right.held(), two.right.held())
        await asyncio.sleep(20)
        assert len(one.view.active()) == 2
        await closed(one, two)

    run(main, seed=4)


def test_an_answer_that_is_lost_after_the_write_is_asked_for_again() -> None:
    async def main() -> None:
        table = MemoryMembershipTable()
        lost: list[TableRequest] = []

        async def first_is_lost(request: TableRequest) -> None:
            if not any(type(other) is type(request) for other in lost):
                lost.append(request)
                raise MembershipUnavailable("lost")

        one = await joined(table, 1, after=first_is_lost)
        assert [row.status for row in one.view.living()] == [SiloStatus.ACTIVE]
        await one.right.held()
        await one.goodbye()
        assert one.view.is_dead(silo(1)[0]) or table.table.rows[0].status is SiloStatus.DEAD
        assert len(lost) == 4
        await closed(one)

    run(main, seed=5)


def test_a_proof_by_the_operating_system_is_believed_at_once() -> None:
    async def main() -> None:
        table = MemoryMembershipTable()
        one, two = await joined(table, 1), await joined(table, 2)
        await seen(one, lambda view: len(view.active()) == 2)
        await two.close()
        one.process_ended(silo(2)[0])
        await asyncio.wait_for(seen(one, lambda view: view.is_dead(silo(2)[0])), 0.1)
        await closed(one)

    run(main, seed=6)


def test_what_is_asked_of_a_closed_membership_is_refused() -> None:
    async def main() -> None:
        one = await joined(MemoryMembershipTable(), 1)
        await one.close()
        with pytest.raises(Closed):
            await one.refresh()
        assert not one.right.is_held()

    run(main, seed=7)


def test_the_same_seed_gives_the_same_trace() -> None:
    async def main() -> int:
        table = MemoryMembershipTable()
        one, two = await joined(table, 1), await joined(table, 2)
        await asyncio.sleep(30)
        await closed(one, two)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return loop.trace

    assert run(main, seed=8) == run(main, seed=8)
