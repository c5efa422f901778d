"""What an adapter gives, and how the rows are made of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from benchmarks.meter import NS_PER_S, Tally, Work, closed_loop, looping
from benchmarks.peers.family import family, resident_bytes
from benchmarks.sizes import (
    ACTIVATIONS_IN_FLIGHT,
    FAN_GRAINS,
    LOCAL_GRAINS,
    REMOTE_GRAINS,
    RING_GRAINS,
)
from benchmarks.sizes import body as body_of

HERE: Final = "here"
"""In the caller's process, and without a network where the peer can do that."""
CALLER: Final = "caller"
"""In the caller's process, as a member of the cluster."""
FIRST: Final = "first"
SECOND: Final = "second"
HOSTS: Final = (FIRST, SECOND)
SPREAD: Final = (CALLER, FIRST, SECOND)
"""Over which the actors of one call are spread, where it takes several."""
IDLE_ACTORS: Final = 5_000
"""Activated in each repetition of the row that measures memory."""
READY: Final = "up"
"""What a host of ours prints when it can be called."""
START_TIMEOUT_S: Final = 30.0

T = TypeVar("T")
H = TypeVar("H")


class Peer(Protocol):
    """An adapter as the caller's process sees it. Made in that process, in its event loop."""

    uvloop: bool
    """Whether it takes part in the caller's event loop, and so deserves the fast one."""

    async def prepare(self, row: str) -> Work:
        """Bring about what that row needs. Raises Unfit where this version cannot do it."""
        ...

    async def close(self) -> None: ...


class Unfit(Exception):
    """This version of a peer cannot do that row; the message says why."""


class ActorPeer(ABC):
    """An adapter of a peer with an asyncio API: what its actors are called with; the rows are the same for all."""

    uvloop = True

    def __init__(self) -> None:
        self.parts = contextlib.AsyncExitStack()
        """What ends with the caller."""

    @abstractmethod
    async def actor(self, place: str, name: str) -> Any:
        """A reference to the actor of that name in HERE, CALLER or one of HOSTS; it need not be active yet."""

    @abstractmethod
    def add(self, actor: Any) -> Awaitable[int]:
        """Call it with an int for an int."""

    @abstractmethod
    def echo(self, actor: Any, body: bytes) -> Awaitable[bytes]: ...

    async def fan(self, hub: Any, leaves: Sequence[Any]) -> Callable[[], Awaitable[int]]:
        """A call on which the hub adds to each of the leaves at once."""
        raise Unfit("its actors call no others over processes")

    async def ring(self, actors: Sequence[Any]) -> Callable[[], Awaitable[int]]:
        """A call that goes through all of them, each within the one before, and comes back with their number."""
        raise Unfit("its actors call no others over processes")

    async def close(self) -> None:
        await self.parts.aclose()

    async def prepare(self, row: str) -> Work:
        what, _, rest = row.partition(".")
        match what:
            case "local":
                return await self._calls(HERE, LOCAL_GRAINS, int(rest))
            case "remote" if rest.isdigit():
                return await self._calls(FIRST, REMOTE_GRAINS, int(rest))
            case "remote":
                size, in_flight = rest.split(".")
                return await self._echoes(f"{size}.", int(in_flight))
            case "fan":
                return await self._fan()
            case "ring":
                return await self._ring()
            case "activate":
                return await self._activations(HERE if rest == "local" else FIRST)
            case "memory":
                return self._memory()
            case _:
                raise Unfit(f"no adapter knows of {row}")

    async def _calls(self, place: str, count: int, in_flight: int) -> Work:
        actors = [await self.actor(place, f"of-{place}-{number}") for number in range(count)]
        for actor in actors:
            expect(type(await self.add(actor)), int)
        return looping([partial(self.add, actors[number % count]) for number in range(in_flight)])

    async def _echoes(self, size: str, in_flight: int) -> Work:
        actors = [await self.actor(FIRST, f"of-{FIRST}-{number}") for number in range(REMOTE_GRAINS)]
        body = body_of(size)
        for actor in actors:
            expect(await self.echo(actor, body), body)
        return looping([partial(self.echo, actors[number % len(actors)], body) for number in range(in_flight)])

    async def _fan(self) -> Work:
        leaves = [await self.actor(SPREAD[number % 3], f"leaf-{number}") for number in range(FAN_GRAINS)]
        for leaf in leaves:
            await self.add(leaf)
        call = await self.fan(await self.actor(FIRST, "hub"), leaves)
        before = await call()
        expect(await call(), before + FAN_GRAINS)
        return looping([call])

    async def _ring(self) -> Work:
        actors = [await self.actor(place, f"ring-{place}") for place in SPREAD[:RING_GRAINS]]
        for actor in actors:
            await self.add(actor)
        call = await self.ring(actors)
        expect(await call(), RING_GRAINS)
        return looping([call])

    async def _activations(self, place: str) -> Work:
        numbers = itertools.count()

        async def activate() -> None:
            await self.add(await self.actor(place, f"new-{place}-{next(numbers)}"))

        await activate()
        return lambda seconds: closed_loop([activate] * ACTIVATIONS_IN_FLIGHT, seconds)

    def _memory(self) -> Work:
        numbers, so_far = itertools.count(), Grown()

        async def activate(_seconds: float) -> Tally:
            left = iter(range(IDLE_ACTORS))

            async def some() -> None:
                for _ in left:
                    await self.add(await self.actor(HERE, f"idle-{next(numbers)}"))

            async def all_of_them() -> None:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(ACTIVATIONS_IN_FLIGHT):
                        workers.create_task(some())

            return await so_far.by(all_of_them, IDLE_ACTORS)

        return activate


def expect(found: object, wanted: object) -> None:
    """Raises RuntimeError where a peer does not answer what it should: then there is nothing to measure."""
    if found != wanted:
        raise RuntimeError(f"it answers {found!r:.60} where {wanted!r:.60} is right")


class Grown:
    """What actors take of the memory of all processes: of those that stay, on average after the first time.

    The first time brings about what any number of them needs once. Later ones, each for itself, would seem to take less
    whenever a table grows by doubling.
    """

    def __init__(self) -> None:
        self._base = 0
        self._actors = 0

    async def by(self, activate: Callable[[], Awaitable[None]], actors: int) -> Tally:
        gc.collect()
        before, begun = resident_bytes(), time.perf_counter()
        await activate()
        wall_s = time.perf_counter() - begun
        gc.collect()
        after = resident_bytes()
        if not self._base:
            self._base = after
            return Tally([], wall_s, count=actors, bytes_each=(after - before) / actors)
        self._actors += actors
        return Tally([], wall_s, count=actors, bytes_each=(after - self._base) / self._actors)


ENDED_TIMEOUT_S: Final = 5.0
ENDED_PAUSE_S: Final = 0.05


async def ended(before: Collection[int]) -> None:
    """Wait until no process lives that did not before; only so long, since a peer may have use for one."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ENDED_TIMEOUT_S):
            while set(family()) - set(before):  # noqa: ASYNC110 - nothing tells when others' processes end
                await asyncio.sleep(ENDED_PAUSE_S)


def in_order(start: Callable[[int], H], finish: Callable[[H], object], in_flight: int, seconds: float) -> Tally:
    """A closed loop for a peer that blocks: so many calls in flight, waited for in the order of their start.

    Args:
        start: makes the call of that number.
        finish: waits for it.
    """
    clock, latencies = time.perf_counter_ns, list[int]()
    numbers = itertools.count(in_flight)
    begun = clock()
    end = begun + int(seconds * NS_PER_S)
    pending = deque((clock(), start(number)) for number in range(in_flight))
    while pending:
        before, call = pending.popleft()
        finish(call)
        after = clock()
        latencies.append(after - before)
        if after < end:
            pending.append((clock(), start(next(numbers))))
    return Tally(latencies, (clock() - begun) / NS_PER_S)


async def start_host(parts: contextlib.AsyncExitStack, peer: str, *arguments: str) -> None:
    """Start `python -m benchmarks.peers.host`, wait until it can be called, and have it end with the parts."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.peers.host",
        peer,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    parts.push_async_callback(_end, process)
    assert process.stdout is not None
    async with asyncio.timeout(START_TIMEOUT_S):
        while (line := await process.stdout.readline()).decode().strip() != READY:
            if not line:
                raise RuntimeError(f"the host of {peer} ended with {await process.wait()} before it was ready")


async def _end(process: asyncio.subprocess.Process) -> None:
    """It has nothing to lose, and some peers take seconds to end in order."""
    if process.returncode is None:
        process.kill()
    await process.wait()


def free_endpoint() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"
