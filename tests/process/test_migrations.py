"""Grains move while they are being called: nothing is lost, nothing runs twice, order and state are kept."""

from __future__ import annotations

import random
import time
from collections import Counter as Tally
from collections.abc import Callable

from silo.client import Client
from silo.testing.witness import Ended, What
from tests.process.grains import Counter
from tests.process.stage import LONG, Stage

SILOS = ("silo-1", "silo-2", "silo-3")
ALREADY_THERE = "it is already there"


async def move_at_random(client: Client, rng: random.Random, *, grains: int, moves: int, batch: int) -> None:
    """Move random counters to random silos until that many have moved."""
    done = 0
    while done < moves:
        counters = [client.grain(Counter, str(key)) for key in rng.sample(range(grains), batch)]
        outcomes = await client.migrate_many(counters, to=rng.choice(SILOS))
        done += sum(outcome.moved for outcome in outcomes)
        failed = Tally(outcome.why for outcome in outcomes if not outcome.moved and outcome.why != ALREADY_THERE)
        assert not failed, f"moves were not made: {failed}"


async def test_migrations_under_full_load_lose_repeat_and_reorder_nothing_and_keep_the_state(
    make_stage: Callable[..., Stage],
) -> None:
    """Long form: 10,000 moves of 1,000 grains."""
    grains, moves = (1_000, 10_000) if LONG else (300, 600)
    async with make_stage() as stage:
        await stage.start(*SILOS)
        for name in ("caller-1", "caller-2"):
            await stage.caller(name, grains=grains, pipelined=2)
        async with stage.client(role="admin") as client:
            began = time.monotonic()
            await move_at_random(client, random.Random(1), grains=grains, moves=moves, batch=min(200, grains // 3))
            took_s = time.monotonic() - began
            ended = await stage.stop_callers()
            counts = {key: await client.grain(Counter, str(key)).read() for key in range(grains)}

        events = stage.assert_promises_kept()
        answered, opened = ended[Ended.VALUE], Tally(event.because for event in events if event.what is What.OPENED)
        print(f"\n{opened['migration']} moves of {grains} grains in {took_s:.1f} s, {answered} calls answered: {ended}")
        assert ended.total() == answered
        assert opened["migration"] >= moves
        assert opened["call"] == grains  # each began once, and never anew
        model = Tally(event.grain for event in events if event.what is What.TURN_ENDED)
        assert {f"counter/{key}": count for key, count in counts.items()} == model
