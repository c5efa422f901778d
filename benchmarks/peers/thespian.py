"""Thespian: a process for each actor (multiprocTCPBase); locally all are in the caller's thread (simpleSystemBase)."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.meter import NS_PER_S, Tally, Work
from benchmarks.peers.contract import Grown, Unfit, ended, expect, free_endpoint, in_order
from benchmarks.peers.family import family
from benchmarks.peers.known import ACTORS_OF_PROCESSES
from benchmarks.sizes import FAN_GRAINS, RING_GRAINS
from benchmarks.sizes import body as body_of

actors: Any = importlib.import_module("thespian.actors")
if TYPE_CHECKING:
    Actor = object
else:
    Actor = actors.Actor

TIMEOUT = timedelta(seconds=30)
IDLE_ACTORS = 10
"""Processes."""


class Add(NamedTuple):
    number: int
    """Of the call; comes back with its answer."""
    amount: int


class Echo(NamedTuple):
    number: int
    body: bytes


class Fan(NamedTuple):
    number: int
    leaves: list[Any]


class Ring(NamedTuple):
    number: int
    origin: Any
    """Who began it; None: whoever sends it."""
    further: list[Any]
    so_far: int


class Answer(NamedTuple):
    number: int
    result: Any


class Counter(Actor):
    """It answers by messages, so what waits for others is kept here in between."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._total = 0
        self._asked: tuple[Any, int] | None = None
        self._awaited = self._sum = 0

    def receiveMessage(self, message: Any, sender: Any) -> None:
        send: Any = getattr(self, "send")  # noqa: B009 - of a base class that has no types
        match message:
            case Add(number, amount):
                self._total += amount
                send(sender, Answer(number, self._total))
            case Echo(number, body):
                send(sender, Answer(number, body))
            case Fan(number, leaves):
                self._asked, self._awaited, self._sum = (sender, number), len(leaves), 0
                for leaf in leaves:
                    send(leaf, Add(number, 1))
            case Answer(_, result) if self._asked is not None:
                self._awaited, self._sum = self._awaited - 1, self._sum + result
                if not self._awaited:
                    send(self._asked[0], Answer(self._asked[1], self._sum))
            case Ring(number, origin, [], so_far):
                send(origin or sender, Answer(number, so_far + 1))
            case Ring(number, origin, [following, *_], so_far):
                send(following, Ring(number, origin or sender, message.further[1:], so_far + 1))
            case _:
                pass  # what the system itself tells actors


class Adapter:
    uvloop = False

    def __init__(self) -> None:
        self._systems: dict[str, Any] = {}
        self._started: list[Any] = []

    def _system(self, base: str) -> Any:
        if base not in self._systems:
            capabilities = {"Admin Port": int(free_endpoint().rpartition(":")[2])}
            self._systems[base] = actors.ActorSystem(base, capabilities, transientUnique=True)
        return self._systems[base]

    @property
    def _alone(self) -> Any:
        return self._system("simpleSystemBase")

    @property
    def _processes(self) -> Any:
        return self._system("multiprocTCPBase")

    def _counters(self, count: int) -> list[Any]:
        while len(self._started) < count:
            self._started.append(_created(self._processes))
        return self._started[:count]

    async def prepare(self, row: str) -> Work:
        what, _, rest = row.partition(".")
        match what:
            case "local":
                return partial(_one_by_one, self._alone, _created(self._alone), Add(0, 1))
            case "activate" if rest == "local":
                return partial(_activations, self._alone, False)
            case "activate":
                return partial(_activations, self._processes, True)
            case "memory":
                self._counters(1)  # what the system itself takes is not counted
                return partial(_memory, self._processes)
            case "remote":
                size, in_flight = ("", rest) if rest.isdigit() else (rest.split(".")[0] + ".", rest.split(".")[1])
                message = Echo(0, body_of(size)) if size else Add(0, 1)
                counters = self._counters(ACTORS_OF_PROCESSES)
                return partial(_in_flight, self._processes, counters, message, int(in_flight))
            case "fan":
                hub, *leaves = self._counters(1 + FAN_GRAINS)
                return partial(_one_by_one, self._processes, hub, Fan(0, leaves))
            case "ring":
                first, *further = self._counters(RING_GRAINS)
                around = Ring(0, None, further, 0)
                expect(self._processes.ask(first, around, TIMEOUT).result, RING_GRAINS)
                return partial(_one_by_one, self._processes, first, around)
            case _:
                raise Unfit(f"no adapter knows of {row}")

    async def close(self) -> None:
        for system in self._systems.values():
            system.shutdown()


def _created(system: Any) -> Any:
    actor = system.createActor(Counter)
    expect(system.ask(actor, Add(0, 1), TIMEOUT), Answer(0, 1))
    return actor


async def _one_by_one(system: Any, actor: Any, message: Any, seconds: float) -> Tally:
    return in_order(lambda _number: system.ask(actor, message, TIMEOUT), _answer, 1, seconds)


def _answer(heard: Any) -> Answer:
    if isinstance(heard, Answer):
        return heard
    raise RuntimeError(f"instead of an answer: {heard!r:.60}")


async def _in_flight(system: Any, counters: Sequence[Any], message: Any, in_flight: int, seconds: float) -> Tally:
    """Calls are told, and answers listened for, whichever comes first."""
    clock, latencies = time.perf_counter_ns, list[int]()
    numbers, begun_at = itertools.count(), dict[int, int]()

    def tell() -> None:
        number = next(numbers)
        begun_at[number] = clock()
        system.tell(counters[number % len(counters)], message._replace(number=number))

    begun = clock()
    end = begun + int(seconds * NS_PER_S)
    for _ in range(in_flight):
        tell()
    while begun_at:
        answer = _answer(system.listen(TIMEOUT))
        after = clock()
        latencies.append(after - begun_at.pop(answer.number))
        if after < end:
            tell()
    return Tally(latencies, (clock() - begun) / NS_PER_S)


async def _activations(system: Any, stopped: bool, seconds: float) -> Tally:
    before, created = family(), list[Any]()
    try:
        return in_order(lambda _number: created.append(_created(system)), lambda _none: None, 1, seconds)
    finally:
        if stopped:
            await _stop(system, created, before)


async def _memory(system: Any, _seconds: float) -> Tally:
    before, created = family(), list[Any]()

    async def activate() -> None:
        created.extend(_created(system) for _ in range(IDLE_ACTORS))

    try:
        return await Grown().by(activate, IDLE_ACTORS)
    finally:
        await _stop(system, created, before)


async def _stop(system: Any, created: Sequence[Any], before: list[int]) -> None:
    for actor in created:
        system.tell(actor, actors.ActorExitRequest())
    await ended(before)
