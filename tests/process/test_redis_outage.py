"""Redis stands still under load: existing activations go on, for longer than that they pause, and nobody dies of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from silo.directory.errors import NotExecuted
from silo.directory.membership import SiloStatus
from silo.embedded import EmbeddedServer
from silo.reference import with_timeout
from silo.testing.witness import Ended, What
from tests.process.grains import Counter
from tests.process.stage import LONG, Stage, continue_process, stop_process

SILOS = ("silo-1", "silo-2", "silo-3")
GRAINS = 60
RATE = 200.0
"""Calls per second: a load, and not so much that the machine is the bottleneck."""
LEASE_S = 5.0 if LONG else 1.5
GRACE_S = 25.0 if LONG else 7.5
OUTAGE_S = 20.0 if LONG else 6.0
OUTAGE_LONG_S = 60.0 if LONG else 5.0
"""Longer than the right lasts: in the short form, that of a lease with next to no grace."""
NEW_GRAIN_DEADLINE_S = 2.0


async def stood_still(stage: Stage, server: EmbeddedServer, outage_s: float) -> tuple[float, float]:
    """Stop the server for this long; returns from when to when."""
    began = stage.now()
    stop_process(server.pid)
    try:
        await asyncio.sleep(outage_s)
    finally:
        ended = stage.now()  # before it goes on: silos may be renewed, and start turns, before this process runs again
        continue_process(server.pid)
    return began, ended


def settings(grace_s: float = GRACE_S) -> dict[str, object]:
    return {"lease.lease_s": LEASE_S, "lease.grace_s": grace_s}


async def all_are_as_before(stage: Stage, before: set[str]) -> None:
    """The same incarnations, all active, and no activation that was not there before."""
    await stage.until(
        lambda view: {str(row.silo) for row in view.active()} == before and len(view.living()) == len(SILOS), 10.0
    )
    for row in (await stage.view()).table.rows:
        assert row.status is SiloStatus.ACTIVE, f"{row.info.name} is {row.status.name}"


async def test_S106_while_redis_stands_still_every_call_to_an_existing_activation_is_answered(
    make_stage: Callable[..., Stage], own_redis_server: EmbeddedServer
) -> None:
    """Long form: 20 s with the lease and the grace of the defaults."""
    async with make_stage(settings()) as stage, stage.client() as client:
        await stage.start(*SILOS)
        await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(GRAINS)))
        silos = {str(row.silo) for row in (await stage.view()).active()}
        await stage.caller("caller-1", grains=GRAINS, rate=RATE)
        opened = sum(event.what is What.OPENED for event in stage.events())

        outage = asyncio.create_task(stood_still(stage, own_redis_server, OUTAGE_S))
        await asyncio.sleep(LEASE_S)
        asked_at = time.monotonic()
        with pytest.raises(NotExecuted):
            await with_timeout(client.grain(Counter, "new"), NEW_GRAIN_DEADLINE_S).read()
        assert time.monotonic() - asked_at < NEW_GRAIN_DEADLINE_S + 1.0
        began, ended_at = await outage

        await all_are_as_before(stage, silos)
        ended = await stage.stop_callers()
        events = stage.assert_promises_kept()
        assert ended.total() == ended[Ended.VALUE], ended
        assert not [event for event in events if event.what is What.CLOSED]
        later = sum(event.what is What.OPENED for event in events) - opened
        assert later <= 1, "none but the one that was new"
        starts = [began, *(e.at for e in events if e.what is What.TURN_STARTED and began < e.at < ended_at), ended_at]
        longest_s = max(after - before for before, after in pairwise(starts))
        answered = len(starts) - 2
        print(
            f"\nRedis stopped for {OUTAGE_S:.0f} s: {answered} turns meanwhile, longest time without {longest_s:.2f} s"
        )
        assert answered > RATE * OUTAGE_S / 3


async def test_S106_a_longer_one_pauses_grains_that_go_on_with_their_state(
    make_stage: Callable[..., Stage], own_redis_server: EmbeddedServer
) -> None:
    """Long form: 60 s with the lease and the grace of the defaults."""
    grace_s = GRACE_S if LONG else 0.5
    async with make_stage(settings(grace_s)) as stage, stage.client() as client:
        await stage.start(*SILOS)
        await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(GRAINS)))
        silos = {str(row.silo) for row in (await stage.view()).active()}
        await stage.caller("caller-1", grains=GRAINS, rate=RATE, deadline_s=2 * OUTAGE_LONG_S + 30)

        began, ended_at = await stood_still(stage, own_redis_server, OUTAGE_LONG_S)
        await stage.witnessed(lambda event: event.what is What.TURN_STARTED and event.at > ended_at, LEASE_S + 5.0)
        await all_are_as_before(stage, silos)
        ended = await stage.stop_callers()
        events = stage.assert_promises_kept()
        assert ended.total() == ended[Ended.VALUE], ended
        assert not [event for event in events if event.what is What.CLOSED]
        fenced_from = began + LEASE_S + grace_s
        fenced = [e for e in events if e.what is What.TURN_STARTED and fenced_from < e.at < ended_at]
        assert not fenced, f"{len(fenced)} turns started when nobody had the right any more"
