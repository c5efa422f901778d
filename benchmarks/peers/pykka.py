"""Pykka: a thread for each actor, all in one process; its calls block whoever waits for them."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.meter import Tally, Work
from benchmarks.peers.contract import Grown, Unfit, in_order
from benchmarks.sizes import LOCAL_GRAINS

pykka: Any = importlib.import_module("pykka")
if TYPE_CHECKING:
    ThreadingActor = object
else:
    ThreadingActor = pykka.ThreadingActor

IDLE_ACTORS = 500
"""Threads."""


class Counter(ThreadingActor):
    def __init__(self) -> None:
        super().__init__()
        self._total = 0

    def add(self, amount: int) -> int:
        self._total += amount
        return self._total


class Adapter:
    uvloop = False

    async def prepare(self, row: str) -> Work:
        match row:
            case "local.1" | "local.64":
                return partial(_calls, [_started().proxy() for _ in range(LOCAL_GRAINS)], int(row.rpartition(".")[2]))
            case "activate.local":
                return _activations
            case "memory":
                return _memory
            case _:
                raise Unfit("it has one process")

    async def close(self) -> None:
        pykka.ActorRegistry.stop_all()


def _started() -> Any:
    start: Any = getattr(Counter, "start")  # noqa: B009 - of a base class that has no types
    return start()


async def _calls(proxies: list[Any], in_flight: int, seconds: float) -> Tally:
    return in_order(
        lambda number: proxies[number % len(proxies)].add(1), lambda future: future.get(), in_flight, seconds
    )


def _activated(actors: list[Any]) -> Any:
    actors.append(actor := _started())
    return actor.proxy().add(1)


def _stop(actors: list[Any]) -> None:
    for actor in actors:
        actor.stop(block=False)
    for actor in actors:
        actor.stop()  # which waits for it


async def _activations(seconds: float) -> Tally:
    actors: list[Any] = []
    try:
        return in_order(lambda _number: _activated(actors), lambda future: future.get(), 1, seconds)
    finally:
        _stop(actors)


async def _memory(_seconds: float) -> Tally:
    actors: list[Any] = []

    async def activate() -> None:
        for _ in range(IDLE_ACTORS):
            _activated(actors).get()

    try:
        return await Grown().by(activate, IDLE_ACTORS)
    finally:
        _stop(actors)
