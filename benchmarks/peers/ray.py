"""Ray: a process for each actor; the caller is a driver with a cluster of its own, and its calls block."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.meter import Tally, Work
from benchmarks.peers.contract import Grown, Unfit, ended, expect, in_order
from benchmarks.peers.family import family
from benchmarks.peers.known import ACTORS_OF_PROCESSES
from benchmarks.sizes import FAN_GRAINS, RING_GRAINS
from benchmarks.sizes import body as body_of

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
ray: Any = importlib.import_module("ray")

IDLE_ACTORS = 4
"""Processes."""
STORE_BYTES = 512 * 1024 * 1024
TIMEOUT_S = 60


class Counter:
    def __init__(self) -> None:
        self._total = 0

    def add(self, amount: int) -> int:
        self._total += amount
        return self._total

    def echo(self, body: bytes) -> bytes:
        return body

    def fan(self, leaves: list[Any], amount: int) -> int:
        totals: list[int] = ray.get([leaf.add.remote(amount) for leaf in leaves])
        return sum(totals)

    def ring(self, further: list[Any]) -> int:
        return 1 + int(ray.get(further[0].ring.remote(further[1:]))) if further else 1


class Adapter:
    uvloop = False

    def __init__(self) -> None:
        ray.init(
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
            object_store_memory=STORE_BYTES,
            _metrics_export_port=None,
        )
        self._kind: Any = ray.remote(num_cpus=0)(Counter)
        self._started: list[Any] = []

    def _counters(self, count: int) -> list[Any]:
        new = [self._kind.remote() for _ in range(count - len(self._started))]
        ray.get([actor.add.remote(1) for actor in new], timeout=TIMEOUT_S)
        self._started += new
        return self._started[:count]

    async def prepare(self, row: str) -> Work:
        what, _, rest = row.partition(".")
        match what:
            case "remote" if rest.isdigit():
                counters = self._counters(ACTORS_OF_PROCESSES)
                return partial(_calls, lambda number: counters[number % len(counters)].add.remote(1), int(rest))
            case "remote":
                size, in_flight = rest.split(".")
                counters, body = self._counters(ACTORS_OF_PROCESSES), body_of(f"{size}.")
                expect(ray.get(counters[0].echo.remote(body), timeout=TIMEOUT_S), body)
                return partial(
                    _calls, lambda number: counters[number % len(counters)].echo.remote(body), int(in_flight)
                )
            case "fan":
                hub, *leaves = self._counters(1 + FAN_GRAINS)
                return partial(_calls, lambda _number: hub.fan.remote(leaves, 1), 1)
            case "ring":
                first, *further = self._counters(RING_GRAINS)
                expect(ray.get(first.ring.remote(further), timeout=TIMEOUT_S), RING_GRAINS)
                return partial(_calls, lambda _number: first.ring.remote(further), 1)
            case "activate" if rest == "remote":
                return self._activations
            case "memory":
                return self._memory
            case _:
                raise Unfit("every actor is a process of its own")

    async def _activations(self, seconds: float) -> Tally:
        before, created = family(), list[Any]()

        def activate(_number: int) -> Any:
            created.append(actor := self._kind.remote())
            return actor.add.remote(1)

        try:
            return in_order(activate, _waited, 1, seconds)
        finally:
            await _kill(created, before)

    async def _memory(self, _seconds: float) -> Tally:
        before, created = family(), list[Any]()

        async def activate() -> None:
            created.extend(self._kind.remote() for _ in range(IDLE_ACTORS))
            ray.get([actor.add.remote(1) for actor in created], timeout=TIMEOUT_S)

        try:
            return await Grown().by(activate, IDLE_ACTORS)
        finally:
            await _kill(created, before)

    async def close(self) -> None:
        ray.shutdown()


def _waited(call: Any) -> None:
    ray.get(call, timeout=TIMEOUT_S)


async def _calls(start: Callable[[int], Any], in_flight: int, seconds: float) -> Tally:
    return in_order(start, _waited, in_flight, seconds)


async def _kill(created: list[Any], before: list[int]) -> None:
    for actor in created:
        ray.kill(actor)
    await ended(before)
