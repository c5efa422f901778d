"""A silo that is told to stop while its Redis is dead gives up what needs it, and ends in order all the same."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from silo.directory.errors import OutcomeUnknown
from silo.embedded import EmbeddedServer
from silo.reference import with_timeout
from tests.process.grains import Counter
from tests.process.stage import Stage, ended_with, stop_process, turn_of

LEASE_S = 3.0
ENDS_WITHIN_S = 2.0
"""How long its last words may take, once it has given up."""
GRAINS = 20


def logged(log: Path, event: str) -> list[dict[str, Any]]:
    """The lines of a silo's log that tell of this."""
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize("redis", ["dead", "silent"])
async def test_a_silo_told_to_stop_while_redis_is_away_ends_in_order_within_a_lease_and_a_little(
    make_stage: Callable[..., Stage], own_redis_server: EmbeddedServer, redis: str
) -> None:
    """Dead: connections are refused. Silent: they stand, and nothing comes back."""
    async with make_stage({"lease.lease_s": LEASE_S}) as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(GRAINS)))
        calls = [
            asyncio.create_task(with_timeout(client.grain(Counter, str(key)), 60.0).increment(f"call-{key}", 50.0))
            for key in range(GRAINS)
        ]
        for key in range(GRAINS):
            await stage.witnessed(turn_of(f"counter/{key}"))
        if redis == "dead":
            own_redis_server.kill()
        else:
            stop_process(own_redis_server.pid)
        began = time.monotonic()
        silos = [stage.cluster["silo-1"], stage.cluster["silo-2"]]
        for silo in silos:
            silo.signal(signal.SIGTERM)
        codes = await asyncio.gather(*(ended_with(silo, 40.0) for silo in silos))
        took_s = time.monotonic() - began

        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10.0)
        print(f"\n{redis}: both ended {took_s:.1f} s after SIGTERM; a lease is {LEASE_S} s")
        assert codes == [0, 0]
        assert took_s < 1.3 * LEASE_S + ENDS_WITHIN_S
        assert all(isinstance(answer, OutcomeUnknown) for answer in answers)
        for silo in silos:
            (given_up,) = logged(silo.log, "silo.drain_failed")
            assert given_up["activations"] > 0
            assert "Redis" in given_up["why"]
            assert len(logged(silo.log, "silo.goodbye_failed")) == 1
