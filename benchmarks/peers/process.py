"""A peer's processes, seen from the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.meter import Tally, Work
from benchmarks.peers.family import MARK, families
from benchmarks.peers.known import KNOWN

ROOT: Final = Path(__file__).resolve().parents[2]
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest line that a caller may answer with: a latency per call."""
START_TIMEOUT_S: Final = 30.0
PREPARE_TIMEOUT_S: Final = 120.0
"""A process for each actor takes its time."""
EXTRA_S: Final = 60.0
"""What a caller may take beyond the time that it was told to measure."""
END_TIMEOUT_S: Final = 10.0


class NotHere(Exception):
    """A peer, or a row of one, cannot be measured here, which is no failure; the message says what to do about it."""


def python_variable(name: str) -> str:
    """The environment variable that names the interpreter of a peer; not SILO_…, which are settings of silos."""
    return f"BENCHMARK_PYTHON_{name.upper()}"


def python_of(name: str) -> str:
    """The interpreter that a peer runs under: this one, if nothing says otherwise."""
    return os.environ.get(python_variable(name), sys.executable)


def pids_of(peers: Sequence[PeerProcess]) -> list[int]:
    """All of their processes that live now."""
    if not peers:
        return []
    found = families()
    return [pid for peer in peers for pid in found.get(peer.mark, [])]


class PeerProcess:
    """The caller of one peer, and whatever that starts; made by `start`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, mark: str, complaints: Path) -> None:
        self._name = name
        self._process = process
        self.mark = mark
        self._complaints = complaints

    @classmethod
    async def start(cls, name: str, apart: str = "") -> Self:
        """Raises NotHere where the peer is not installed.

        Args:
            apart: what tells it from others of the same peer.
        """
        mark = f"{name}-{os.getpid()}-{apart}"
        number, path = tempfile.mkstemp(prefix=f"peer-{name}-", suffix=".log")
        with contextlib.ExitStack() as unless_started, os.fdopen(number, "wb") as complaints:
            unless_started.callback(os.unlink, path)
            try:
                process = await asyncio.create_subprocess_exec(
                    python_of(name),
                    "-m",
                    "benchmarks.peers.caller",
                    name,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=complaints,
                    limit=ANSWER_BYTES_MAX,
                    env={**os.environ, "PYTHONPATH": str(ROOT), MARK: mark},
                )
            except OSError as error:
                raise RuntimeError(f"{python_of(name)} cannot be run: {error}") from error
            unless_started.pop_all()
        peer = cls(name, process, mark, Path(path))
        try:
            hello = await peer._answer(START_TIMEOUT_S)
            if "missing" in hello:
                raise NotHere(KNOWN[name].lacks(hello["missing"]))
        except BaseException:
            await peer.end()
            raise
        return peer

    async def prepare(self, row: str) -> Work:
        """Have it prepare the row of that name, as `KNOWN` has it. Raises NotHere where this version cannot do it."""
        await self._ask({"prepare": row}, PREPARE_TIMEOUT_S)
        return partial(self._measure, row)

    async def _measure(self, row: str, seconds: float) -> Tally:
        return Tally(**await self._ask({"measure": row, "seconds": seconds}, seconds + EXTRA_S))

    async def _ask(self, what: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # then there is no answer, either
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
        answer = await self._answer(timeout_s)
        if "unfit" in answer:
            raise NotHere(f"{self._name}: {answer['unfit']}")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    async def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            self._kill()  # what it answers now would be taken for the answer to another question
            raise RuntimeError(f"{self._name} has not answered within {timeout_s:g} s") from None
        if not line:
            raise RuntimeError(f"{self._name} ended with {await self._process.wait()}: {self._last_complaint()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_complaint(self) -> str:
        lines = self._complaints.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it did not say why"

    async def end(self) -> None:
        """Have the caller end, and what it may have left behind."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            pass
        self._kill()
        await self._process.wait()
        self._complaints.unlink(missing_ok=True)

    def _kill(self) -> None:
        for pid in families().get(self.mark, []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
