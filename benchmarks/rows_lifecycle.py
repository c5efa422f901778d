"""Activations, moves, and silos that leave."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator

from benchmarks import rows_floors as floors
from benchmarks.grains import Counter, Parcel
from benchmarks.harness import Prepare, Rows, long_scene
from benchmarks.meter import NS_PER_S, Tally, Work, closed_loop
from benchmarks.sizes import ACTIVATIONS_IN_FLIGHT
from benchmarks.stage import BENCH, FURTHER, GATEWAY, REDIS, THIRD, Stage, grains_on
from silo import Client, MigrationOutcome, Silo, SiloError, with_hint, with_timeout

BATCH_GRAINS = 500
MANY_GRAINS = 10_000
BETWEEN_MOVES_CALLS = 10
"""Answered calls between two moves of the grain whose pause is measured."""
KIB = 1024
MIB = 1024 * KIB
DRAINED_IDLE, DRAINED_BUSY = 50_000, 1_000
DRAIN_CALLERS = 64
DRAIN_LEAD_S = 0.5
"""How long the callers of a silo that leaves call before that, and after."""
DRAIN_TIMEOUT_S = 300.0
"""For a silo that leaves with more than a machine of this kind moves in the time that silos have by default."""
FIRST_GRAINS = 100
"""Activated before others are counted: they bring about what any activation needs once."""
ACTIVATED_WITHIN_S = 900.0
AT_A_TIME = 1_000
"""Grains that are activated at a time where that is not what is measured."""


# ------------------------------------------------------------------------------------------------------- activations


def _activations(on: str) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        silo, numbers = await stage.silo(), itertools.count()

        async def activate() -> None:
            await with_hint(silo.grain(Counter, f"new-{on}-{next(numbers)}"), on).add(1)

        return lambda seconds: closed_loop([activate] * ACTIVATIONS_IN_FLIGHT, seconds)

    return prepare


def _activations_of(count: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        silo = await stage.silo()
        await grains_on(silo, Counter, "first", FIRST_GRAINS, GATEWAY)

        async def activate(number: int) -> None:
            await with_hint(silo.grain(Counter, f"new-{number}"), GATEWAY).add(1)

        return lambda _seconds: each_of(range(count), activate, ACTIVATIONS_IN_FLIGHT)

    return prepare


async def each_of(numbers: range, do: Callable[[int], Awaitable[None]], in_flight: int) -> Tally:
    """Do it once for each number, so many at a time; the latency of each is how long that one took."""
    clock, latencies, left = time.perf_counter_ns, list[int](), iter(numbers)
    begun = clock()

    async def work() -> None:
        for number in left:
            before = clock()
            await do(number)
            latencies.append(clock() - before)

    async with asyncio.TaskGroup() as workers:
        for _ in range(in_flight):
            workers.create_task(work())
    return Tally(latencies, (clock() - begun) / NS_PER_S)


async def activated(host: Silo | Client, name: str, count: int, silo: str) -> list[Counter]:
    """Counters that are active on the silo of that name, however many."""
    counters: list[Counter] = []
    while len(counters) < count:
        batch = range(len(counters), min(len(counters) + AT_A_TIME, count))
        counters += [host.grain(Counter, f"{name}-{number}") for number in batch]
        await asyncio.gather(
            *(with_timeout(with_hint(counters[number], silo), ACTIVATED_WITHIN_S).add(1) for number in batch)
        )
    return counters


# ------------------------------------------------------------------------------------------------------------- moves


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


async def _many(stage: Stage) -> Work:
    """All of many grains to the other silo, by one order."""
    client = await stage.client()
    parcels: list[Parcel] = []
    for batch in range(MANY_GRAINS // AT_A_TIME):
        parcels += await grains_on(client, Parcel, f"many-{batch}", AT_A_TIME, GATEWAY)

    async def move(_seconds: float) -> Tally:
        begun = time.perf_counter()
        outcomes = await client.migrate_many(parcels, to=FURTHER)
        wall_s = time.perf_counter() - begun
        pauses = [int(outcome.pause_s * NS_PER_S) for outcome in outcomes if outcome.moved]
        return Tally(pauses, wall_s, failed=len(outcomes) - len(pauses))

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


Pause = Callable[[MigrationOutcome, Caller], int]
"""What counts as the pause of a move, in nanoseconds."""


def _by_source(outcome: MigrationOutcome, _caller: Caller) -> int:
    return int(outcome.pause_s * NS_PER_S)


def _by_caller(_outcome: MigrationOutcome, caller: Caller) -> int:
    return caller.slowest_ns


def _pauses(size: int, pause: Pause) -> Prepare:
    """One grain to and fro, under the calls of one caller."""

    async def prepare(stage: Stage) -> Work:
        silo = await stage.silo()
        places: Iterator[str] = itertools.cycle((FURTHER, GATEWAY))
        (parcel,) = await grains_on(silo, Parcel, f"pause-{size}-{pause.__name__}", 1, GATEWAY)
        await parcel.load(size)

        async def move(seconds: float) -> Tally:
            caller = Caller(parcel)
            calling = asyncio.create_task(caller.run())
            moving = asyncio.create_task(_to_and_fro(silo, parcel, caller, places, pause, seconds))
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

    return prepare


async def _to_and_fro(
    silo: Silo, parcel: Parcel, caller: Caller, places: Iterator[str], pause: Pause, seconds: float
) -> Tally:
    begun, pauses = time.perf_counter(), list[int]()
    while (wall_s := time.perf_counter() - begun) < seconds or not pauses:
        await caller.goes_on(BETWEEN_MOVES_CALLS)
        caller.slowest_ns = 0
        outcome = _moved(await silo.migrate(parcel, to=next(places)))
        await caller.goes_on(2)  # the first may have been answered before the move
        pauses.append(pause(outcome, caller))
    return Tally(pauses, wall_s)


def _moved(outcome: MigrationOutcome) -> MigrationOutcome:
    if not outcome.moved:
        raise RuntimeError(str(outcome))
    return outcome


# ----------------------------------------------------------------------------------------------- silos that leave


async def _idle_drain(stage: Stage) -> Work:
    """A silo full of grains that nobody calls leaves; its time is until the end of its process.

    Whether they came with their state is asked of each afterwards; those that did not count as failed.
    """
    client = await stage.client()
    counters = await activated(client, "drained", DRAINED_IDLE, FURTHER)

    async def drain(_seconds: float) -> Tally:
        begun = time.perf_counter()
        await stage.drain(FURTHER)
        wall_s = time.perf_counter() - begun
        lost = 0
        for at in range(0, len(counters), AT_A_TIME):
            totals = await asyncio.gather(*(counter.read() for counter in counters[at : at + AT_A_TIME]))
            lost += sum(total != 1 for total in totals)
        return Tally([], wall_s, count=len(counters), failed=lost)

    return drain


async def _busy_drain(stage: Stage) -> Work:
    """A silo leaves whose grains are called all the time; latencies are those of the calls.

    Raises RuntimeError where a grain has not counted each answered call once.
    """
    client = await stage.client()
    counters = await activated(client, "busy", DRAINED_BUSY, FURTHER)

    async def drain(_seconds: float) -> Tally:
        latencies, failures, leaving = list[int](), list[str](), True
        numbers = itertools.cycle(range(len(counters)))
        answered = [1] * len(counters)

        async def call() -> None:
            while leaving:
                number = next(numbers)
                before = time.perf_counter_ns()
                try:
                    await counters[number].add(1)
                except SiloError as error:
                    failures.append(str(error))
                else:
                    answered[number] += 1
                    latencies.append(time.perf_counter_ns() - before)

        async with asyncio.TaskGroup() as callers:
            for _ in range(DRAIN_CALLERS):
                callers.create_task(call())
            await asyncio.sleep(DRAIN_LEAD_S)
            begun = time.perf_counter()
            await stage.drain(FURTHER)
            wall_s = time.perf_counter() - begun
            await asyncio.sleep(DRAIN_LEAD_S)
            leaving = False
        totals = await asyncio.gather(*(counter.read() for counter in counters))
        wrong = sum(total != count for total, count in zip(totals, answered, strict=True))
        if wrong and not failures:  # a call that failed may have run
            raise RuntimeError(f"{wrong} grains have not counted each of their calls once")
        return Tally(latencies, wall_s, count=len(counters), failed=len(failures))

    return drain


def add_rows(rows: Rows) -> None:
    rows.add(
        "activate",
        f"first calls from another silo, {ACTIVATIONS_IN_FLIGHT} in flight, each registered in Redis",
        [BENCH, GATEWAY, REDIS],
        _activations(GATEWAY),
        unit="activation",
    )
    rows.add(
        "activate.local",
        f"first calls in the same silo, {ACTIVATIONS_IN_FLIGHT} in flight, each registered in Redis",
        [BENCH, REDIS],
        _activations(BENCH),
        unit="activation",
    )
    for name, count in (("10k", 10_000), ("100k", 100_000)):
        rows.add(
            f"activate.{name}",
            f"{count:,} grains on one silo by first calls from another, {ACTIVATIONS_IN_FLIGHT} in flight,"
            " each registered in Redis",
            [BENCH, GATEWAY, REDIS],
            _activations_of(count),
            unit="activation",
            scene=long_scene(f"activate.{name}"),
        )
    for name, size in (("1k", KIB), ("1m", MIB)):
        rows.add(
            f"move.{name}",
            f"a grain of {size // KIB:,} KiB that is called all the time; latency: the pause by the source's clock",
            [BENCH, GATEWAY, FURTHER, REDIS],
            _pauses(size, _by_source),
            beside=floors.echo(1),
            unit="move",
        )
    rows.add(
        "move.seen",
        "a grain of 1 KiB that is called all the time; latency: its caller's slowest call around the move",
        [BENCH, GATEWAY, FURTHER, REDIS],
        _pauses(KIB, _by_caller),
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
    rows.add(
        "move.10k",
        f"{MANY_GRAINS:,} grains of 1 KiB, by one order of a client; latency: the pause by the source's clock",
        [BENCH, GATEWAY, FURTHER, REDIS],
        _many,
        unit="move",
        scene=long_scene("move.10k"),
    )
    rows.add(
        "drain.1k",
        f"a silo leaves with {DRAINED_BUSY:,} grains that {DRAIN_CALLERS} callers of a client call all the time;"
        " latency: of the calls; failed: calls",
        [BENCH, GATEWAY, FURTHER, THIRD, REDIS],
        _busy_drain,
        unit="grain",
        scene=long_scene("drain.1k", gateway=True),
    )
    rows.add(
        "drain.50k",
        f"a silo leaves with {DRAINED_IDLE:,} grains that nobody calls; failed: grains without their state",
        [BENCH, GATEWAY, FURTHER, THIRD, REDIS],
        _idle_drain,
        unit="grain",
        scene=long_scene("drain.50k", migration__shutdown_timeout_s=DRAIN_TIMEOUT_S),
    )
