"""Redis stands still under load: what callers notice, and that afterwards the directory is what the catalogs are."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable
from itertools import pairwise

import pytest

from silo.client import Client
from silo.directory.redis_directory import RedisDirectory
from silo.embedded import EmbeddedServer
from silo.testing.witness import Ended, What
from tests.process.grains import Counter
from tests.process.stage import ASK_EVERY_S, LONG, Stage
from tests.process.test_redis_outage import (
    GRACE_S,
    GRAINS,
    LEASE_S,
    OUTAGE_LONG_S,
    OUTAGE_S,
    RATE,
    SILOS,
    all_are_as_before,
    settings,
    stood_still,
)

AGREES_WITHIN_S = 10.0
PATIENT_S = 2 * OUTAGE_LONG_S + 30.0


async def rows_by_grain(stage: Stage) -> dict[str, str]:
    """Which incarnation the directory names for each grain."""
    directory = RedisDirectory.at(stage.redis, stage.cluster_name)
    try:
        return {str(entry.grain): str(entry.silo) async for page in directory.entries() for entry in page}
    finally:
        await directory.close()


async def disagreement(stage: Stage, client: Client) -> str:
    """What directory and catalogs do not say alike; empty where there is nothing."""
    rows = await rows_by_grain(stage)
    homes = await asyncio.gather(*(client.grain(Counter, str(key)).where() for key in range(GRAINS)))
    answering = {f"counter/{key}": home for key, home in enumerate(homes)}
    status = await client.management.status()
    hosted = {str(silo.address): silo.activations for silo in status.silos if silo.activations}
    if rows != answering:
        return f"the directory has {rows}, and there answer {answering}"
    return "" if hosted == dict(Tally(rows.values())) else f"silos host {hosted}, the directory has {rows}"


@pytest.mark.parametrize(
    ("outage_s", "grace_s"),
    [
        pytest.param(OUTAGE_S, GRACE_S, id="within_the_grace"),
        pytest.param(OUTAGE_LONG_S, GRACE_S if LONG else 0.5, id="beyond_it"),
    ],
)
async def test_after_redis_stood_still_nobody_is_dead_nothing_deactivated_and_the_directory_is_what_catalogs_are(
    make_stage: Callable[..., Stage], own_redis_server: EmbeddedServer, outage_s: float, grace_s: float
) -> None:
    """Long form: 20 s and 60 s with the lease and the grace of the defaults."""
    async with make_stage(settings(grace_s)) as stage, stage.client(role="admin") as client:
        await stage.start(*SILOS)
        await stage.caller("caller-1", grains=GRAINS, rate=RATE, deadline_s=PATIENT_S)
        called = {f"counter/{key}" for key in range(GRAINS)}
        async with asyncio.timeout(30.0):  # until the gateways know every grain
            while {event.grain for event in stage.events() if event.what is What.TURN_ENDED} != called:  # noqa: ASYNC110 - the witness tells nobody
                await asyncio.sleep(ASK_EVERY_S)
        silos = {str(row.silo) for row in (await stage.view()).active()}
        opened = sum(event.what is What.OPENED for event in stage.events())

        began, ended_at = await stood_still(stage, own_redis_server, outage_s)
        async with asyncio.timeout(AGREES_WITHIN_S):
            await all_are_as_before(stage, silos)
            while why := await disagreement(stage, client):
                print(why)
                await asyncio.sleep(ASK_EVERY_S)
        agreed_s = stage.now() - ended_at
        ended = await stage.stop_callers()

        events = stage.assert_promises_kept()
        assert ended.total() == ended[Ended.VALUE], ended
        assert not [event for event in events if event.what is What.CLOSED]
        assert sum(event.what is What.OPENED for event in events) == opened == GRAINS
        turns = [event.at for event in events if event.what is What.TURN_STARTED]
        around = [began, *(at for at in turns if began < at < ended_at + AGREES_WITHIN_S)]
        longest_s = max(after - before for before, after in pairwise(around))
        print(
            f"\nRedis stopped for {outage_s:.0f} s (lease {LEASE_S} s, grace {grace_s} s): {ended.total()} calls, all "
            f"answered; longest time without a turn {longest_s:.2f} s; all agreed {agreed_s:.2f} s after its return"
        )
        if outage_s < LEASE_S + grace_s:
            assert sum(began < at < ended_at for at in turns) > RATE * outage_s / 3
        else:
            assert not [at for at in turns if began + LEASE_S + grace_s < at < ended_at]
