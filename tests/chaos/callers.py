"""A caller process of the chaos bench: `python -m tests.chaos.callers …`. It obeys one command a line.

`go` begins to call. `rest` sends nothing more, waits until every call has ended, and tells how they did. `vitals` tells
what the process takes. Each is answered by a line of JSON; the end of standard input ends the process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from silo.application import run_on
from silo.client import Client
from silo.reference import with_timeout
from silo.testing.witness import FileWitness
from tests.chaos.grains import Relay, Tallied
from tests.chaos.vitals import Vitals, measure
from tests.process.witnessed import WitnessedCaller

Work = Callable[[], Coroutine[Any, Any, None]]

OPEN_CALLS_MAX: Final = 500
"""Calls of one caller that may be open at once; beyond it the caller is late instead."""
BURST_MAX: Final = 4
DEADLINES_LEASES: Final = (1.5, 2.5, 4.0)
"""The deadlines of calls, in leases: some are too short for the death of a silo, some are not."""
HOT_GRAINS: Final = 5
HOT_SHARE: Final = 0.15
"""So many of the calls go to few grains."""


class Answer(msgspec.Struct, frozen=True):
    """What a caller says after a command."""

    ended: dict[str, int] = {}
    """How its calls have ended, by outcome."""
    vitals: Vitals | None = None


class Load:
    """The calls of one process: alone, in bursts, slowly, from grain to grain, and sometimes given up.

    Args:
        rate: calls per second, about.
    """

    def __init__(
        self, client: Client, caller: WitnessedCaller, *, grains: int, rate: float, lease_s: float, rng: random.Random
    ) -> None:
        self._client = client
        self._caller = caller
        self._grains = grains
        self._rate = rate
        self._deadlines_s = [leases * lease_s for leases in DEADLINES_LEASES]
        self._rng = rng
        self._slots = asyncio.Semaphore(OPEN_CALLS_MAX)

    async def run(self) -> None:
        """Call until cancelled; then wait until every call has ended."""
        loop, due = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            try:
                while True:
                    due = max(due + self._rng.expovariate(self._rate), loop.time() - 1.0)
                    await asyncio.sleep(due - loop.time())
                    for call in self._some_calls():
                        await self._slots.acquire()
                        group.create_task(call()).add_done_callback(lambda _: self._slots.release())
            except asyncio.CancelledError:
                pass  # the wish to rest: what is out comes home first

    def _some_calls(self) -> list[Work]:
        rng = self._rng
        key = str(rng.randrange(HOT_GRAINS if rng.random() < HOT_SHARE else self._grains))
        deadline_s = rng.choice(self._deadlines_s)
        counter = with_timeout(self._client.grain(Tallied, key), deadline_s)

        def one(send: Callable[[str], Awaitable[int]], target: str = f"tally/{key}") -> Work:
            async def call() -> None:
                await self._caller.call(send, target=target, deadline_s=deadline_s)

            return call

        kind = rng.random()
        if kind < 0.6:
            return [one(counter.increment)] * rng.randint(1, BURST_MAX)
        if kind < 0.75:
            takes_s = rng.uniform(0.01, 0.3)
            return [one(lambda call: counter.increment(call, takes_s))]
        if kind < 0.9:
            relay = with_timeout(self._client.grain(Relay, key), deadline_s)
            target, times = str(rng.randrange(self._grains)), rng.randint(1, 3)
            return [one(lambda call: relay.forward(call, target, times), f"relay/{key}")]
        if kind < 0.95:
            return [one(counter.increment_and_move)]
        patience_s = rng.uniform(0.0, 0.4)
        return [lambda: self._give_up(one(lambda call: counter.increment(call, 0.3)), patience_s)]

    async def _give_up(self, call: Work, patience_s: float) -> None:
        """A call whose caller soon no longer waits."""
        waiting = asyncio.create_task(call())
        await asyncio.wait([waiting], timeout=patience_s)
        waiting.cancel()
        await asyncio.wait([waiting])


async def work(arguments: argparse.Namespace) -> int:
    """Obey until standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    witness = FileWitness(arguments.witness)
    caller = WitnessedCaller(witness, arguments.name)
    rng = random.Random(arguments.seed)
    async with Client.connect(arguments.redis, cluster=arguments.cluster, name=arguments.name) as client:
        load = Load(client, caller, grains=arguments.grains, rate=arguments.rate, lease_s=arguments.lease_s, rng=rng)
        running: asyncio.Task[None] | None = None
        while command := (await reader.readline()).decode().strip():
            match command:
                case "go":
                    running = asyncio.create_task(load.run())
                    answer = Answer()
                case "rest":
                    if running is not None:
                        running.cancel()
                        await running
                    answer = Answer(ended=dict(caller.ended))
                case _:
                    gc.collect()
                    answer = Answer(vitals=measure())
            print(msgspec.json.encode(answer).decode(), flush=True)
    witness.close()
    return 0


def main() -> int:
    """Read the arguments and work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--witness", required=True)
    parser.add_argument("--grains", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--lease-s", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    return run_on(None, work(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
