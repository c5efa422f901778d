"""Large payloads travel beside small calls, and do not hold them up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from silo.reference import with_timeout

from tests.process.grains import Mirror
from tests.process.stage import LONG, Stage, in_ms, percentile
from tests.support.witness import Ended, Event, What

BLOCK_BYTES = 20 * 1024 * 1024
ROUNDS = 20 if LONG else 6
BASELINE_S = 10.0 if LONG else 2.5
DISTURBED_TIMES_MAX = 10.0
"""By how much the p99 of small calls may grow while large ones travel …"""
DISTURBED_P99_S = 0.100
"""… if it is above this: below, what is measured is how a machine shares its cores."""


def latencies(events: Sequence[Event], since: float, until: float) -> list[float]:
    """Of the calls that were sent and answered within these times."""
    sent = {event.call: event.at for event in events if event.what is What.CALL_SENT and event.at >= since}
    ended = (event for event in events if event.what is What.CALL_ENDED and event.at <= until)
    return [event.at - sent[event.call] for event in ended if event.call in sent and event.outcome == Ended.VALUE]


async def test_20_mib_arguments_and_results_arrive_whole_and_leave_small_calls_undisturbed(
    make_stage: Callable[..., Stage],
) -> None:
    rng = random.Random(7)
    blocks = [rng.randbytes(BLOCK_BYTES) for _ in range(2)]
    async with make_stage() as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        await stage.caller("caller-1", grains=40, rate=200)
        mirrors = [with_timeout(client.grain(Mirror, str(number)), 30.0) for number in range(4)]
        for mirror in mirrors:
            assert await mirror.reflect(b"small") == b"small"
        started = stage.now()
        await asyncio.sleep(BASELINE_S)
        large_from = stage.now()
        for number in range(ROUNDS):
            block = blocks[number % len(blocks)]
            assert await mirrors[number % len(mirrors)].reflect(block) == block
        large_until = stage.now()
        ended = await stage.stop_callers()

        events = stage.assert_promises_kept()
        before = latencies(events, started, large_from)
        during = latencies(events, large_from, large_until)
        rate = 2 * ROUNDS * BLOCK_BYTES / (large_until - large_from) / 2**20
        print(f"\n{ROUNDS} × 20 MiB there and back at {rate:.0f} MiB/s")
        print(f"  small calls before  {in_ms(before)}")
        print(f"  small calls during  {in_ms(during)}")
        assert ended.total() == ended[Ended.VALUE]
        assert len(during) > 50
        assert percentile(during, 0.99) < max(DISTURBED_TIMES_MAX * percentile(before, 0.99), DISTURBED_P99_S)


async def test_two_large_calls_at_once_arrive_whole(make_stage: Callable[..., Stage]) -> None:
    """To different grains, from two clients, both ways at the same time."""
    rng = random.Random(8)
    blocks = [rng.randbytes(BLOCK_BYTES) for _ in range(2)]
    async with make_stage() as stage, stage.client() as one, stage.client() as other:
        await stage.start("silo-1", "silo-2")
        mirrors = [with_timeout(client.grain(Mirror, str(n)), 30.0) for n, client in enumerate((one, other))]
        answers = await asyncio.gather(
            *(mirror.reflect(block) for mirror, block in zip(mirrors, blocks, strict=True))
        )
        assert list(answers) == blocks
