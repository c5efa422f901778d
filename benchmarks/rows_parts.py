"""Parts of the runtime by themselves: decisions of placement, and questions to the directory."""

from __future__ import annotations

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
    what = f"in Redis, {BATCH_GRAINS} at a time over all buckets"
    rows.add("directory.register", f"grains registered {what}", [BENCH, REDIS], _registrations, unit="registration")
    rows.add("directory.lookup", f"grains looked up {what}", [BENCH, REDIS], _lookups, unit="lookup")
