"""Redis is flushed under load: nobody is deactivated, counts go on, and the directory is soon what the catalogs are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from silo.embedded import EmbeddedServer
from silo.testing.witness import What
from tests.process.grains import Counter
from tests.process.stage import ASK_EVERY_S, Stage
from tests.process.test_figures_outage import disagreement
from tests.process.test_redis_outage import GRAINS, RATE, SILOS, all_are_as_before, settings
from tests.support.redis_server import operator

AGREES_WITHIN_S = 10.0
PATIENT_S = 30.0


async def test_R434_a_flushed_redis_deactivates_nobody_and_the_directory_is_made_again(
    make_stage: Callable[..., Stage], own_redis_server: EmbeddedServer
) -> None:
    async with make_stage(settings()) as stage, stage.client(role="admin") as client:
        await stage.start(*SILOS)
        await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(GRAINS)))
        await stage.caller("caller-1", grains=GRAINS, rate=RATE, deadline_s=PATIENT_S)
        silos = {str(row.silo) for row in (await stage.view()).active()}
        opened = sum(event.what is What.OPENED for event in stage.events())

        redis = operator(own_redis_server.url)
        await redis.flushall()
        await redis.aclose()
        flushed_at = stage.now()
        async with asyncio.timeout(AGREES_WITHIN_S):
            await all_are_as_before(stage, silos)
            while why := await disagreement(stage, client):
                print(why)
                await asyncio.sleep(ASK_EVERY_S)
        print(f"\nflushed: directory and catalogs agree {stage.now() - flushed_at:.2f} s later")
        assert await client.grain(Counter, "new").read() == 0

        await stage.stop_callers()
        events = stage.assert_promises_kept()
        assert not [event for event in events if event.what is What.CLOSED]
        assert sum(event.what is What.OPENED for event in events) == opened + 1
