"""The load: clients that call counters and relays, alone, in bursts, slowly, and sometimes changing their mind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from silo.client import Client
from silo.reference import with_timeout
from tests.simulation.grains import Counter, Relay, witnessed

BURST_MAX = 6
PRESS_S = 0.02
"""Within this of an order to move a grain it is called: moves take about as long."""


class Caller:
    """One client and its workers. All of it runs in the client's own node.

    Args:
        workers: how many make calls at a time.
        keys: how many counters there are.
        deadlines_s: the deadlines to choose from.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        rng: random.Random,
        *,
        workers: int,
        keys: int,
        deadlines_s: tuple[float, ...],
    ) -> None:
        self._client = client
        self._name = name
        self._rng = rng
        self._workers = workers
        self._keys = keys
        self._deadlines_s = deadlines_s
        self._is_stopping = False

    def stop(self) -> None:
        """Begin no more calls."""
        self._is_stopping = True

    async def work(self) -> None:
        """Make calls until told to stop, and wait until all have ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        rng = self._rng
        while not self._is_stopping:
            await rng.choice(
                (self._burst, self._burst, self._slow, self._read, self._relay, self._move, self._give_up)
            )()
            await asyncio.sleep(rng.expovariate(4.0))

    async def touch_all(self, deadline_s: float, others: Sequence[str]) -> None:
        """One call to each grain, and to counters that others have called."""
        async with asyncio.TaskGroup() as group:
            for key in map(str, range(self._keys)):
                counter = with_timeout(self._client.grain(Counter, key), deadline_s)
                relay = with_timeout(self._client.grain(Relay, key), deadline_s)
                group.create_task(self._call(counter.increment, f"counter/{key}", deadline_s))
                forward = partial(relay.forward, target="0", times=0)
                group.create_task(self._call(forward, f"relay/{key}", deadline_s))
            for key in others:
                counter = with_timeout(self._client.grain(Counter, key), deadline_s)
                group.create_task(self._call(counter.increment, f"counter/{key}", deadline_s))

    async def press(self, keys: Sequence[str]) -> None:
        """Bursts of calls to these counters, each about now: while they move, say."""
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(self._burst_soon(key))

    async def _burst_soon(self, key: str) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, PRESS_S))
        await self._burst_of(key, self._rng.choice(self._deadlines_s))

    async def _burst(self) -> None:
        await self._burst_of(*self._pick())

    async def _burst_of(self, key: str, deadline_s: float) -> None:
        """Calls to one counter at once: they run in this order."""
        counter = with_timeout(self._client.grain(Counter, key), deadline_s)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._rng.randint(1, BURST_MAX)):
                group.create_task(self._call(counter.increment, f"counter/{key}", deadline_s))

    async def _slow(self) -> None:
        key, deadline_s = self._pick()
        takes_s = self._rng.uniform(0.01, 1.0)
        counter = with_timeout(self._client.grain(Counter, key), deadline_s)
        await self._call(lambda call: counter.increment(call, takes_s), f"counter/{key}", deadline_s)

    async def _read(self) -> None:
        key, deadline_s = self._pick()
        takes_s = self._rng.uniform(0.0, 0.2)
        counter = with_timeout(self._client.grain(Counter, key), deadline_s)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._rng.randint(1, 3)):
                group.create_task(
                    self._call(lambda call: counter.read(call, takes_s), f"counter/{key}", deadline_s, interleaves=True)
                )

    async def _relay(self) -> None:
        key, deadline_s = self._pick()
        target, times = str(self._rng.randrange(self._keys)), self._rng.randint(1, 3)
        relay = with_timeout(self._client.grain(Relay, key), deadline_s)
        await self._call(lambda call: relay.forward(call, target, times), f"relay/{key}", deadline_s)

    async def _move(self) -> None:
        key, deadline_s = self._pick()
        counter = with_timeout(self._client.grain(Counter, key), deadline_s)
        await self._call(counter.increment_and_move, f"counter/{key}", deadline_s)

    async def _give_up(self) -> None:
        """A call whose caller soon no longer waits."""
        key, deadline_s = self._pick()
        counter = with_timeout(self._client.grain(Counter, key), deadline_s)
        call = asyncio.create_task(self._call(lambda call: counter.increment(call, 0.3), f"counter/{key}", deadline_s))
        await asyncio.wait([call], timeout=self._rng.uniform(0.0, 0.4))
        call.cancel()
        await asyncio.wait([call])

    def _pick(self) -> tuple[str, float]:
        return str(self._rng.randrange(self._keys)), self._rng.choice(self._deadlines_s)

    async def _call(
        self, send: Callable[[str], Awaitable[int]], target: str, deadline_s: float, *, interleaves: bool = False
    ) -> int | None:
        return await witnessed(send, caller=self._name, target=target, deadline_s=deadline_s, interleaves=interleaves)
