"""The caller's end of the echo in a process of its own: asyncio and gRPC as they come, without what the runtime sets.

`python -m benchmarks.plain ENDPOINT` reads lines `IN_FLIGHT SECONDS` and answers each with what it measured, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path

from benchmarks.echo import NUMBER, EchoClient
from benchmarks.meter import Tally, closed_loop
from silo.application import Loop, run_on

AS_IT_COMES = {"GRPC_EXPERIMENTS": ""}
"""Environment in which importing the runtime's transport leaves gRPC's switches alone."""
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""The longest line that a driver may answer with: a latency per call."""
EXTRA_S = 30.0
"""What a driver may take beyond the time that it was told to measure."""


async def drive(endpoint: str) -> int:
    """Measure as told, until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with EchoClient(endpoint) as client:
        while line := await reader.readline():
            in_flight, seconds = line.split()
            tally = await closed_loop([partial(client.call, NUMBER.pack(1))] * int(in_flight), float(seconds))
            print(json.dumps([tally.latencies_ns, tally.wall_s]), flush=True)
    return 0


class PlainEcho:
    """The driver's process, seen from the run."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, endpoint: str, python_path: str) -> PlainEcho:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.plain",
            endpoint,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
            env={**os.environ, **AS_IT_COMES, "PYTHONPATH": python_path},
        )
        return cls(process)

    async def measure(self, in_flight: int, seconds: float) -> Tally:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{in_flight} {seconds}\n".encode())
        async with asyncio.timeout(seconds + EXTRA_S):
            line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{Path(__file__).name} ended with {await self.process.wait()}")
        latencies_ns, wall_s = json.loads(line)
        return Tally(latencies_ns, wall_s)


if __name__ == "__main__":
    sys.exit(run_on(Loop.ASYNCIO, drive(sys.argv[1])))
