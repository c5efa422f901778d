"""What many grains take, and what a call costs as grains and silos become more."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.grains import Counter
from benchmarks.harness import Prepare, Rows, long_scene
from benchmarks.meter import Call, Tally, Work, closed_loop
from benchmarks.rows_lifecycle import activated
from benchmarks.stage import BENCH, GATEWAY, IDLE, REDIS, SILO_PREFIX, Stage, grains_on
from silo import Silo

IN_FLIGHT = 64
"""Calls, to each silo."""
GRAINS_OF_SILO = 64
SILOS = (1, 2, 4, 8)
MEASURED_S = 4.0
COLLECTED_AFTER_S = 24 * 3600.0
"""None of many grains is collected while others come."""
KEYS = "many"
"""How the names of the grains begin that become more."""
SEED = 1


def short(count: int) -> str:
    """As rows are named: 1k, 100k, 1m."""
    return f"{count // 1_000_000}m" if count >= 1_000_000 else f"{count // 1_000}k"


def _memory(count: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        async def activate(_seconds: float) -> Tally:
            idle = await stage.idle_silo.activate(count)
            return Tally([], idle.wall_s, count=count, bytes_each=idle.bytes_per_grain)

        return activate

    return prepare


def _grains(count: int) -> Prepare:
    """So many active grains on one silo, and calls to any of them. Those of the rows before are among them."""

    async def prepare(stage: Stage) -> Work:
        silo = await stage.silo()
        await activated(silo, KEYS, count, GATEWAY)
        rng = random.Random(SEED)
        await _calls_to_any(silo, count, rng, MEASURED_S / 4)
        return lambda _seconds: _calls_to_any(silo, count, rng, MEASURED_S)

    return prepare


async def _calls_to_any(silo: Silo, count: int, rng: random.Random, seconds: float) -> Tally:
    async def call() -> None:
        await silo.grain(Counter, f"{KEYS}-{rng.randrange(count)}").add(1)

    return await closed_loop([call] * IN_FLIGHT, seconds)


def _silos(names: list[str]) -> Prepare:
    """Grains on each of them, and calls to all of them at once; each silo has the same load, however many they are."""

    async def prepare(stage: Stage) -> Work:
        silo = await stage.silo()
        calls: list[Call] = []
        for name in names:
            counters = await grains_on(silo, Counter, f"of-{name}", GRAINS_OF_SILO, name)
            calls += [partial(counters[number % len(counters)].add, 1) for number in range(IN_FLIGHT)]
        await closed_loop(calls, MEASURED_S / 4)
        return lambda _seconds: closed_loop(calls, MEASURED_S)

    return prepare


def add_rows(rows: Rows) -> None:
    for count in (100_000, 1_000_000):
        rows.add(
            f"memory.{short(count)}",
            f"{count:,} idle grains in one silo, each registered in Redis, called once by the silo itself",
            [IDLE, REDIS],
            _memory(count),
            unit="activation",
            scene=long_scene(f"memory.{short(count)}"),
        )
    many = long_scene("scale.grains", activation__collect_after_s=COLLECTED_AFTER_S)
    for count in (1_000, 10_000, 100_000, 1_000_000):
        rows.add(
            f"scale.grains.{short(count)}",
            f"silo to silo, {IN_FLIGHT} in flight to any of {count:,} active grains",
            [BENCH, GATEWAY, REDIS],
            _grains(count),
            scene=many,
        )
    for silos in SILOS:
        names = [f"{SILO_PREFIX}{number}" for number in range(1, silos + 1)]
        rows.add(
            f"scale.silos.{silos}",
            f"one silo calls {silos} other{'s' if silos > 1 else ''}, {IN_FLIGHT} in flight over"
            f" {GRAINS_OF_SILO} grains on each",
            [BENCH, *names, REDIS],
            _silos(names),
            scene=long_scene(f"scale.silos.{silos}"),
        )
