"""What an idle grain takes in its silo: `python -m benchmarks.memory --grains N` prints bytes per grain, as JSON.

A silo of its own process activates so many counters, each registered in Redis, and is then idle. What its resident
memory has grown by is divided by their number: entries, queues, fragmentation and all. The first thousand are not
counted, since they bring about what any number of grains needs once.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.grains import Counter
from silo import Silo, SiloSettings
from silo.application import run_on
from silo.embedded import EmbeddedServer

FIRST = 1_000
IN_FLIGHT = 1_000
_STATM = Path("/proc/self/statm")


async def _activate(silo: Silo, first: int, count: int) -> None:
    for start in range(first, first + count, IN_FLIGHT):
        numbers = range(start, min(start + IN_FLIGHT, first + count))
        await asyncio.gather(*(silo.grain(Counter, str(number)).add(1) for number in numbers))


def _resident_bytes() -> int:
    """The resident memory of this process, without what is garbage."""
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Idle:
    """What so many idle grains take, each."""

    grains: int
    bytes_per_grain: float


async def measure(grains: int) -> Idle:
    async with EmbeddedServer() as server:
        settings = SiloSettings(cluster="memory", redis=server.url, listen="127.0.0.1:0", name="memory")
        silo = Silo(Counter, settings=settings)
        await silo.start()
        try:
            await _activate(silo, 0, FIRST)
            before = _resident_bytes()
            await _activate(silo, FIRST, grains)
            grown = _resident_bytes() - before
        finally:
            await silo.kill()  # its grains have nowhere to move to
    return Idle(grains, round(grown / grains, 1))


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--grains", type=int, default=100_000, help="how many (default: %(default)s)")
    grains: int = parser.parse_args(given).grains
    if grains < 1:
        parser.error("--grains must be above 0")
    if not _STATM.exists():
        parser.error("the resident memory of a process is read from /proc, which this platform has not")

    async def report() -> int:
        print(json.dumps(dataclasses.asdict(await measure(grains))))
        return 0

    return run_on(None, report())


if __name__ == "__main__":
    sys.exit(main())
