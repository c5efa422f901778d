"""What an idle grain takes in its silo: `python -m benchmarks.memory --grains N` prints bytes per grain, as JSON.

A silo of its own process activates so many counters, each registered in Redis, and is then idle. What its resident
memory has grown by is divided by their number: entries, queues, fragmentation and all. The first thousand are not
counted, since they bring about what any number of grains needs once.

With --serve it takes the Redis that is there, and reads how many to activate from its standard input, line by line,
until that ends: so the rows of the suite have it in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from benchmarks.echo import standard_input
from benchmarks.grains import Counter
from benchmarks.idle import Idle
from silo import Silo, SiloSettings
from silo.application import run_on
from silo.embedded import EmbeddedServer
from silo.settings import ActivationSettings, CallSettings

FIRST = 1_000
IN_FLIGHT = 1_000
LONG_S = 24 * 3600.0
"""For calls, and until idle grains are collected: what is measured here is no time."""
_STATM = Path("/proc/self/statm")


async def _activate(silo: Silo, first: int, count: int) -> None:
    for start in range(first, first + count, IN_FLIGHT):
        numbers = range(start, min(start + IN_FLIGHT, first + count))
        await asyncio.gather(*(silo.grain(Counter, str(number)).add(1) for number in numbers))


def _resident_bytes() -> int:
    """The resident memory of this process, without what is garbage."""
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def _silo(redis: str) -> AsyncGenerator[Silo]:
    """A silo with the first grains, which are not counted."""
    settings = SiloSettings(
        cluster="memory",
        redis=redis,
        listen="127.0.0.1:0",
        name="memory",
        bootstrap=True,
        calls=CallSettings(call_timeout_s=LONG_S),
        activation=ActivationSettings(collect_after_s=LONG_S),
    )
    silo = Silo(Counter, settings=settings)
    await silo.start()
    try:
        await _activate(silo, 0, FIRST)
        yield silo
    finally:
        await silo.kill()  # its grains have nowhere to move to


async def _grown(silo: Silo, first: int, grains: int) -> Idle:
    before, begun = _resident_bytes(), time.perf_counter()
    await _activate(silo, first, grains)
    wall_s = time.perf_counter() - begun
    return Idle(grains, round((_resident_bytes() - before) / grains, 1), wall_s)


async def measure(grains: int) -> Idle:
    async with EmbeddedServer() as server, _silo(server.url) as silo:
        return await _grown(silo, FIRST, grains)


async def serve(redis: str) -> int:
    """Measure as told, until standard input ends."""
    reader, first = asyncio.StreamReader(), FIRST
    with contextlib.closing(await standard_input(reader)):
        async with _silo(redis) as silo:
            print("ready", flush=True)
            while line := await reader.readline():
                found = await _grown(silo, first, int(line))
                first += found.grains
                print(json.dumps(dataclasses.asdict(found)), flush=True)
    return 0


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--grains", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--serve", metavar="URL", help="of a Redis; measures as standard input tells")
    arguments = parser.parse_args(given)
    if arguments.grains < 1:
        parser.error("--grains must be above 0")
    if not _STATM.exists():
        parser.error("the resident memory of a process is read from /proc, which this platform has not")
    if arguments.serve is not None:
        return run_on(None, serve(arguments.serve))

    async def report() -> int:
        print(json.dumps(dataclasses.asdict(await measure(arguments.grains))))
        return 0

    return run_on(None, report())


if __name__ == "__main__":
    sys.exit(main())
