"""A silo in a process of its own that activates grains and is then idle, seen from the run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Idle:
    """What so many idle grains take, each.

    Args:
        wall_s: how long it took to activate them.
    """

    grains: int
    bytes_per_grain: float
    wall_s: float


class IdleSilo:
    """The process of `python -m benchmarks.memory --serve URL`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, redis: str, python_path: str) -> IdleSilo:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.memory",
            "--serve",
            redis,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": python_path},
        )
        silo = cls(process)
        await silo._answer()  # it has started
        return silo

    async def activate(self, grains: int) -> Idle:
        """Activate so many more, and measure what they take. However long that takes: they may be a million."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{grains}\n".encode())
        return Idle(**json.loads(await self._answer()))

    async def _answer(self) -> bytes:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the idle silo ended with {await self.process.wait()}")
        return line
