"""Calls across an outage: what makes a retry more urgent never delays it. R-208, R-210."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from silo.directory.errors import NotExecuted, OutcomeUnknown
from silo.placement.decision import Decision
from silo.reference import with_timeout
from tests.cluster.clusters import Cluster, MemoryStand
from tests.cluster.grains import Ledger, Witness

pytestmark = pytest.mark.in_memory


async def test_R208_calls_every_10_ms_across_an_outage_succeed_within_a_second_and_cause_no_storm(
    cluster: Cluster,
) -> None:
    stand = cluster.stand
    assert isinstance(stand, MemoryStand)
    loop = asyncio.get_running_loop()
    await cluster.start("a", kinds=(Ledger,))
    client = await cluster.client()
    ledger = with_timeout(client.grain(Ledger, "k"), 2.0)
    await ledger.write("before")
    answered: list[float] = []
    failed: list[float] = []

    async def call() -> None:
        sent = loop.time()
        try:
            await ledger.write("x")
        except (NotExecuted, OutcomeUnknown):
            failed.append(sent)
        else:
            answered.append(loop.time())

    async def wake() -> None:
        async with asyncio.TaskGroup() as calls:
            while len(answered) < 500:
                calls.create_task(call())
                await asyncio.sleep(0.01)

    await cluster.kill("a")
    asked = len(stand.directory_calls)
    waking = asyncio.create_task(wake())
    await asyncio.sleep(20.0)
    assert answered == []
    await cluster.start("a", kinds=(Ledger,))
    back = loop.time()  # it serves, and the silo that was killed has been declared dead
    await waking
    assert answered[0] - back < 1.0
    assert max(failed) < back
    assert len(stand.directory_calls) - asked < 20


async def test_R210_a_placement_that_is_due_is_never_put_off_by_calls_that_come_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await cluster.start("a", kinds=(Witness,))
    loop = asyncio.get_running_loop()
    placement = a.runtime.placement
    choose = placement.choose
    tried: list[float] = []

    def counted(*arguments: object, **options: object) -> Decision:
        tried.append(loop.time())
        return choose(*arguments, **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - passed on

    monkeypatch.setattr(placement, "choose", counted)
    goes_on = True
    answered: list[float] = []

    async def call() -> None:
        try:
            await with_timeout(a.grain(Ledger, "k"), 3.0).read()
        except (NotExecuted, OutcomeUnknown):
            return
        answered.append(loop.time())

    async def keep_calling() -> None:
        async with asyncio.TaskGroup() as calls:
            while goes_on:
                calls.create_task(call())
                await asyncio.sleep(0.01)

    calling = asyncio.create_task(keep_calling())
    await asyncio.sleep(20.0)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert max(gaps) < 1.6  # the pause between tries, whatever comes in between
    assert len(tried) < 60  # two thousand calls later
    assert answered == []
    await cluster.start("b", kinds=(Ledger,))
    joined = loop.time()
    await cluster.seen(lambda: answered)
    assert answered[0] - joined < 0.1
    assert len(answered) > 250  # all that still waited, since overdue ones take nobody's place
    goes_on = False
    await calling
