"""Parts of the runtime by themselves: decisions of placement, deadlines, and questions to the directory."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable

from benchmarks.harness import Prepare, Rows
from benchmarks.meter import NS_PER_S, Tally, Work
from benchmarks.stage import BENCH, REDIS, Stage
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.contract import Registration
from silo.placement.policies import ActivationCountPlacement
from silo.placement.policy import Candidate, PlacementView
from silo.routing.call import Call
from silo.routing.deadlines import Deadlines

BATCH_GRAINS = 500
LOOKED_UP = 10_000
HERE = SiloAddress("127.0.0.1:1", 1)


def _decisions(silos: int) -> Prepare:
    async def prepare(_stage: Stage) -> Work:
        policy, rng = ActivationCountPlacement(), random.Random(1)
        addresses = [SiloAddress(f"127.0.0.1:{port}", 1) for port in range(1, silos + 1)]
        view = PlacementView(1, tuple(Candidate(each, f"silo-{each.endpoint}") for each in addresses), rng)
        grain = GrainId("bench.counter", "1")
        return lambda seconds: _repeat(lambda: policy.choose(grain, view, HERE), seconds)

    return prepare


DEADLINES_AT_A_TIME = 100
DEADLINE_S = 30.0


async def _timers(_stage: Stage) -> Work:
    """A timer of the loop for each deadline, cancelled as the call ends: what the runtime does not do."""
    loop = asyncio.get_running_loop()

    def hundred() -> None:
        for _ in range(DEADLINES_AT_A_TIME):
            loop.call_at(loop.time() + DEADLINE_S, hundred).cancel()

    return _timed(hundred, DEADLINES_AT_A_TIME)


async def _deadlines(_stage: Stage) -> Work:
    """The runtime's one timer for all; a call that ends is dropped later, with others."""
    loop, numbers = asyncio.get_running_loop(), itertools.count()
    deadlines = Deadlines(dict[int, Call](), lambda _call: None)

    def hundred() -> None:
        for _ in range(DEADLINES_AT_A_TIME):
            deadlines.watch(next(numbers), loop.time() + DEADLINE_S, loop)

    return _timed(hundred, DEADLINES_AT_A_TIME)


def _timed(do: Callable[[], None], count: int) -> Work:
    """What is too short to be timed by itself; each takes its share."""

    async def work(seconds: float) -> Tally:
        tally = await _repeat(do, seconds)
        return Tally([each // count for each in tally.latencies_ns], tally.wall_s, len(tally.latencies_ns) * count)

    return work


async def _repeat(decide: Callable[[], object], seconds: float) -> Tally:
    clock, latencies = time.perf_counter_ns, list[int]()
    begun = clock()
    end = begun + int(seconds * NS_PER_S)
    while (before := clock()) < end:
        decide()
        latencies.append(clock() - before)
    return Tally(latencies, (clock() - begun) / NS_PER_S)


def _asked(ask: Callable[[], Awaitable[object]]) -> Work:
    """Batches one after the other; a question takes as long as its batch."""

    async def work(seconds: float) -> Tally:
        clock, latencies = time.perf_counter_ns, list[int]()
        begun = clock()
        end = begun + int(seconds * NS_PER_S)
        while (before := clock()) < end:
            await ask()
            latencies += [clock() - before] * BATCH_GRAINS
        return Tally(latencies, (clock() - begun) / NS_PER_S)

    return work


async def _registrations(stage: Stage) -> Work:
    directory, numbers = await stage.directory(), itertools.count()

    async def register() -> None:
        batch = itertools.islice(numbers, BATCH_GRAINS)
        await directory.register(
            [Registration(GrainId("bench.counter", f"r-{number}"), HERE, f"a-{number}") for number in batch]
        )

    return _asked(register)


async def _lookups(stage: Stage) -> Work:
    directory = await stage.directory()
    grains = [GrainId("bench.counter", f"l-{number}") for number in range(LOOKED_UP)]
    await directory.register([Registration(grain, HERE, "a") for grain in grains])
    batches = itertools.cycle([grains[at : at + BATCH_GRAINS] for at in range(0, LOOKED_UP, BATCH_GRAINS)])

    async def look_up() -> None:
        if None in await directory.lookup(next(batches)):
            raise RuntimeError("the directory does not know what was registered")

    return _asked(look_up)


def add_rows(rows: Rows) -> None:
    for silos in (3, 100):
        what = f"a decision by power of two choices among {silos} silos"
        rows.add(f"place.{silos}", what, [BENCH], _decisions(silos), unit="decision")
    rows.add("deadline.each", "a timer of the loop, set and cancelled", [BENCH], _timers, unit="deadline")
    what = "a deadline of a call that ends before it, by the one timer for all"
    rows.add("deadline.all", what, [BENCH], _deadlines, beside="deadline.each", unit="deadline")
    what = f"in Redis, {BATCH_GRAINS} at a time over all buckets"
    rows.add("directory.register", f"grains registered {what}", [BENCH, REDIS], _registrations, unit="registration")
    rows.add("directory.lookup", f"grains looked up {what}", [BENCH, REDIS], _lookups, unit="lookup")
