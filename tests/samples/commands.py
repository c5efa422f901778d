"""Commands, run as a newcomer types them, with all that they print."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND_TIMEOUT_S = 90.0
"""How long a command may take, on a machine that is busy with other tests."""
SILO = (sys.executable, "-m", "silo")


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """All of it, for the messages of assertions."""
        return f"exit code {self.code}\n{self.out}\n{self.err}"


@contextlib.asynccontextmanager
async def started(command: Sequence[str], *, cwd: Path = ROOT) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a command for as long as the block; what still runs at its end is killed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SILO_", "OTEL_"))}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()


async def run(command: Sequence[str], *, cwd: Path = ROOT) -> Ended:
    """Run a command to its end. One that does not end says where it stands, and what it has printed."""
    async with started(command, cwd=cwd) as process:
        ending = asyncio.create_task(ended(process))
        done, _ = await asyncio.wait([ending], timeout=COMMAND_TIMEOUT_S)
        if not done:
            process.send_signal(signal.SIGABRT)  # Python's fault handler writes the stacks
        result = await ending
    assert done, f"{' '.join(command)} did not end within {COMMAND_TIMEOUT_S} s: {result.told}"
    return result


async def ended(process: asyncio.subprocess.Process) -> Ended:
    """Wait for the end of a command; tells what it printed and nobody has read."""
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """Read on until the command prints a line with this text."""
    assert process.stdout is not None
    read: list[str] = []
    async with asyncio.timeout(COMMAND_TIMEOUT_S):
        async for line in process.stdout:
            read.append(line.decode())
            if text in read[-1]:
                return read[-1]
    raise AssertionError(f"it ended without saying {text!r}:\n{''.join(read)}\n{(await ended(process)).told}")
