"""Activations and moves."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

from benchmarks import rows_floors as floors
from benchmarks.grains import Counter, Parcel
from benchmarks.harness import Rows
from benchmarks.meter import NS_PER_S, Tally, Work, closed_loop
from benchmarks.stage import BENCH, FURTHER, GATEWAY, REDIS, Stage, grains_on
from silo import MigrationOutcome, Silo, with_hint

ACTIVATIONS_IN_FLIGHT = 256
BATCH_GRAINS = 500
BETWEEN_MOVES_CALLS = 10
"""Answered calls between two moves of the grain whose pause is measured."""


async def _activations(stage: Stage) -> Work:
    silo, numbers = await stage.silo(), itertools.count()

    async def activate() -> None:
        await with_hint(silo.grain(Counter, f"new-{next(numbers)}"), GATEWAY).add(1)

    return lambda seconds: closed_loop([activate] * ACTIVATIONS_IN_FLIGHT, seconds)


async def _batches(stage: Stage) -> Work:
    """Batches of grains to and fro. The latency of a move is the pause that its source measured."""
    await stage.silo()
    client, places = await stage.client(), itertools.cycle((FURTHER, GATEWAY))
    parcels = await grains_on(client, Parcel, "batch", BATCH_GRAINS, GATEWAY)

    async def move(seconds: float) -> Tally:
        begun, pauses = time.perf_counter(), list[int]()
        while (wall_s := time.perf_counter() - begun) < seconds or not pauses:
            for outcome in await client.migrate_many(parcels, to=next(places)):
                pauses.append(int(_moved(outcome).pause_s * NS_PER_S))
        return Tally(pauses, wall_s)

    return move


class Caller:
    """Calls one grain all the time, and remembers the slowest of its calls."""

    def __init__(self, grain: Parcel) -> None:
        self._grain = grain
        self.answered = 0
        self.slowest_ns = 0
        self._progress = asyncio.Condition()

    async def run(self) -> None:
        while True:
            before = time.perf_counter_ns()
            await self._grain.add(1)
            self.slowest_ns = max(self.slowest_ns, time.perf_counter_ns() - before)
            self.answered += 1
            async with self._progress:
                self._progress.notify_all()

    async def goes_on(self, calls: int) -> None:
        """Wait until so many more calls are answered."""
        wanted = self.answered + calls
        async with self._progress:
            await self._progress.wait_for(lambda: self.answered >= wanted)


async def _pauses(stage: Stage) -> Work:
    """One grain to and fro, under the calls of one caller, whose slowest call around a move is its latency."""
    silo = await stage.silo()
    places: Iterator[str] = itertools.cycle((FURTHER, GATEWAY))
    (parcel,) = await grains_on(silo, Parcel, "pause", 1, GATEWAY)

    async def move(seconds: float) -> Tally:
        caller = Caller(parcel)
        calling = asyncio.create_task(caller.run())
        moving = asyncio.create_task(_to_and_fro(silo, parcel, caller, places, seconds))
        try:
            await asyncio.wait([calling, moving], return_when=asyncio.FIRST_COMPLETED)
            if not moving.done():
                await calling  # raises what ended it
            return await moving
        finally:
            for task in (calling, moving):
                task.cancel()
            await asyncio.gather(calling, moving, return_exceptions=True)

    return move


async def _to_and_fro(silo: Silo, parcel: Parcel, caller: Caller, places: Iterator[str], seconds: float) -> Tally:
    begun, pauses = time.perf_counter(), list[int]()
    while (wall_s := time.perf_counter() - begun) < seconds or not pauses:
        await caller.goes_on(BETWEEN_MOVES_CALLS)
        caller.slowest_ns = 0
        _moved(await silo.migrate(parcel, to=next(places)))
        await caller.goes_on(2)  # the first may have been answered before the move
        pauses.append(caller.slowest_ns)
    return Tally(pauses, wall_s)


def _moved(outcome: MigrationOutcome) -> MigrationOutcome:
    if not outcome.moved:
        raise RuntimeError(str(outcome))
    return outcome


def add_rows(rows: Rows) -> None:
    rows.add(
        "activate",
        f"first calls from another silo, {ACTIVATIONS_IN_FLIGHT} in flight, each registered in Redis",
        [BENCH, GATEWAY, REDIS],
        _activations,
        unit="activation",
    )
    rows.add(
        "move.one",
        "a grain of 1 KiB that is called all the time; latency: its caller's slowest call around the move",
        [BENCH, GATEWAY, FURTHER, REDIS],
        _pauses,
        beside=floors.echo(1),
        unit="move",
    )
    rows.add(
        "move.batch",
        f"{BATCH_GRAINS} grains of 1 KiB at a time, ordered by a client; latency: the pause by the source's clock",
        [BENCH, GATEWAY, FURTHER, REDIS],
        _batches,
        unit="move",
    )
