"""Large payloads travel beside small calls, and do not hold them up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from silo.reference import with_timeout
from silo.testing.witness import Ended, Event, What
from tests.process.grains import Mirror
from tests.process.stage import LONG, Stage, in_ms, percentile

BLOCK_BYTES = 20 * 1024 * 1024
ROUNDS = 20 if LONG else 6
BASELINE_S = 10.0 if LONG else 2.5
SHORT_TIMES = 3.0
"""In the short form, which runs beside other tests on the same cores, the bound is so many times as wide."""
SHARE_OF_LARGE_MAX = 0.5
"""The p99 of small calls, as a share of the time of a large one, for which it would be 1 if they waited for it …"""
DISTURBED_TIMES_MAX = 5.0
"""… and as a multiple of what it is without large calls; the larger counts, since a busy machine disturbs too."""


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
        large: list[float] = []
        for number in range(ROUNDS):
            block, began = blocks[number % len(blocks)], stage.now()
            assert await mirrors[number % len(mirrors)].reflect(block) == block
            large.append(stage.now() - began)
        large_until = stage.now()
        ended = await stage.stop_callers()

        events = stage.assert_promises_kept()
        before = latencies(events, started, large_from)
        during = latencies(events, large_from, large_until)
        print(f"\n20 MiB there and back   {in_ms(large)}")
        print(f"  small calls before  {in_ms(before)}")
        print(f"  small calls during  {in_ms(during)}")
        assert ended.total() == ended[Ended.VALUE]
        assert len(during) > 50
        allowed_s = max(SHARE_OF_LARGE_MAX * percentile(large, 0.5), DISTURBED_TIMES_MAX * percentile(before, 0.99))
        assert percentile(during, 0.99) < allowed_s * (1.0 if LONG else SHORT_TIMES)


async def test_two_large_calls_at_once_arrive_whole(make_stage: Callable[..., Stage]) -> None:
    """To different grains, from two clients, both ways at the same time."""
    rng = random.Random(8)
    blocks = [rng.randbytes(BLOCK_BYTES) for _ in range(2)]
    async with make_stage() as stage, stage.client() as one, stage.client() as other:
        await stage.start("silo-1", "silo-2")
        mirrors = [with_timeout(client.grain(Mirror, str(n)), 30.0) for n, client in enumerate((one, other))]
        answers = await asyncio.gather(*(mirror.reflect(block) for mirror, block in zip(mirrors, blocks, strict=True)))
        assert list(answers) == blocks
