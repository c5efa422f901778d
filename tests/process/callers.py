"""A caller process: `python -m tests.process.callers …` calls counters, and tells the witness of each call.

It says on standard output when its first call was answered, goes on until its standard input ends, waits until every
call has ended, and says how they did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys

from silo.application import run_on
from silo.client import Client
from silo.reference import with_timeout
from silo.testing.witness import Ended, FileWitness
from tests.process.grains import Counter
from tests.process.witnessed import WitnessedCaller

OPEN_CALLS_MAX = 5_000
"""Calls of a paced caller that may be open at once; beyond it the caller is late instead."""
RETRY_PAUSE_S = 0.01
"""After calls that failed at once, before the next ones: a grain that cannot be reached is no reason to spin."""


class Load:
    """The calls of one process to all of the counters.

    Args:
        pipelined: calls sent to one grain at once; they must run in this order.
        rate: calls per second over all grains; 0 for as many as there can be, on every grain at all times.
        tick_s: with a rate, calls go out together that are due within so much time, as from a process that serves many
            users in one loop; 0 for each at its own moment.
    """

    def __init__(
        self,
        client: Client,
        caller: WitnessedCaller,
        *,
        grains: int,
        pipelined: int,
        rate: float,
        tick_s: float,
        deadline_s: float,
        rng: random.Random,
    ) -> None:
        self._caller = caller
        self._pipelined = pipelined
        self._rate = rate
        self._tick_s = tick_s
        self._deadline_s = deadline_s
        self._rng = rng
        self._counters = [with_timeout(client.grain(Counter, str(key)), deadline_s) for key in range(grains)]
        self.first = asyncio.Event()
        """Set by the first answer."""
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping.set()

    async def run(self) -> None:
        """Call until told to stop, and wait until every call has ended."""
        async with asyncio.TaskGroup() as group:
            if self._rate:
                group.create_task(self._paced(group))
                return
            for key in range(len(self._counters)):
                group.create_task(self._always(key))

    async def _always(self, key: int) -> None:
        while not self._stopping.is_set():
            answers = await asyncio.gather(*(self._call(key) for _ in range(self._pipelined)))
            if None in answers:
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _paced(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        slots = asyncio.Semaphore(OPEN_CALLS_MAX)
        due = loop.time()
        while not self._stopping.is_set():
            due += self._rng.expovariate(self._rate / self._pipelined)
            if due > loop.time() + self._tick_s:
                await asyncio.sleep(due - loop.time())
            key = self._rng.randrange(len(self._counters))
            for _ in range(self._pipelined):
                await slots.acquire()
                group.create_task(self._call(key)).add_done_callback(lambda _: slots.release())

    async def _call(self, key: int) -> int | None:
        answer = await self._caller.call(
            self._counters[key].increment, target=f"counter/{key}", deadline_s=self._deadline_s
        )
        if answer is not None:
            self.first.set()
        return answer


async def _end_of_input() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def work(arguments: argparse.Namespace) -> int:
    """Call until standard input ends."""
    witness = FileWitness(arguments.witness)
    caller = WitnessedCaller(witness, arguments.name)
    async with Client.connect(
        None if arguments.gateway else arguments.redis,
        cluster=arguments.cluster,
        gateways=arguments.gateway,
        token=arguments.token,
        name=arguments.name,
    ) as client:
        load = Load(
            client,
            caller,
            grains=arguments.grains,
            pipelined=arguments.pipelined,
            rate=arguments.rate,
            tick_s=arguments.tick_s,
            deadline_s=arguments.deadline_s,
            rng=random.Random(arguments.name),
        )
        running = asyncio.create_task(load.run())
        first = asyncio.create_task(load.first.wait())
        await asyncio.wait({running, first}, return_when=asyncio.FIRST_COMPLETED)
        print(json.dumps({"calling": True}), flush=True)
        await _end_of_input()
        load.stop()
        await running
        first.cancel()
    witness.close()
    print(json.dumps({str(outcome): caller.ended[outcome] for outcome in Ended}), flush=True)
    return 0


def main() -> int:
    """Read the arguments and work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis")
    parser.add_argument("--gateway", action="append", default=[])
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--token")
    parser.add_argument("--name", required=True)
    parser.add_argument("--witness", required=True)
    parser.add_argument("--grains", type=int, required=True)
    parser.add_argument("--pipelined", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--tick-s", type=float, default=0.0)
    parser.add_argument("--deadline-s", type=float, default=30.0)
    return run_on(None, work(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
