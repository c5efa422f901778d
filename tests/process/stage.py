"""The stage of one process test: a cluster of real silos, caller processes, one witness for all, and the verdict."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from silo.client import Client
from silo.directory.addresses import SiloAddress
from silo.directory.members_reader import MembersReader
from silo.directory.membership import SiloRow, SiloStatus, View
from silo.directory.redis_connection import RedisClient, open_redis
from silo.testing.history import check
from silo.testing.processes import ProcessCluster, SiloProcess
from silo.testing.witness import Event, FileWitness, What, read_events
from tests.process.grains import WITNESS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
GRAINS = "tests.process.grains"
LONG = os.environ.get("SILO_TEST_LONG") == "1"
"""Whether the long forms of the tests are run."""
ASK_EVERY_S = 0.02
"""How often something is looked at that tells nobody when it changes."""
CALLER_TIMEOUT_S = 60.0
"""How long a caller process may take to begin, or to end with all of its calls."""
VIOLATIONS_SHOWN_MAX = 12


@dataclass
class CallerProcess:
    """One process that calls counters."""

    name: str
    process: asyncio.subprocess.Process

    async def begun(self) -> None:
        """Wait until its first call was answered."""
        await self._line()

    async def stop(self) -> dict[str, int]:
        """Let it send nothing more; returns how its calls have ended, once all have."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        ended = await self._line()
        assert await self.process.wait() == 0, f"caller {self.name} ended with {self.process.returncode}"
        return ended

    async def _line(self) -> dict[str, int]:
        assert self.process.stdout is not None
        async with asyncio.timeout(CALLER_TIMEOUT_S):
            line = await self.process.stdout.readline()
        assert line, f"caller {self.name} ended with {await self.process.wait()} and said nothing"
        found: dict[str, int] = json.loads(line)
        return found


@dataclass
class Stage:
    """A cluster under watch. What still runs at the end of the block is killed.

    Args:
        redis: the URL of its server.
        folder: where the witness writes.
        settings: settings of all silos, by dotted names.
        modules: what they host.
    """

    redis: str
    cluster_name: str
    folder: Path
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    modules: Sequence[str] = (GRAINS,)

    def __post_init__(self) -> None:
        self.file = self.folder / "witness.jsonl"
        self.witness = FileWitness(self.file)
        self.cluster = ProcessCluster(
            self.modules,
            redis=self.redis,
            cluster=self.cluster_name,
            settings=self.settings,
            environment={WITNESS_VARIABLE: str(self.file), "PYTHONPATH": str(ROOT), **self.environment},
            logs=self.folder / "logs",
        )
        self._callers: list[CallerProcess] = []
        self._redis: RedisClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for caller in self._callers:
            if caller.process.returncode is None:
                caller.process.kill()
                await caller.process.wait()
        await self.cluster.__aexit__(kind, error, trace)
        if self._redis is not None:
            await self._redis.aclose()
        self.witness.close()

    # ----------------------------------------------------------------------------------------------------------- actors

    async def start(self, *names: str, **options: Any) -> None:
        """Start silos, all at once."""
        await asyncio.gather(*(self.cluster.start(name, **options) for name in names))

    def client(self, **options: Any) -> Client:
        """A client of the cluster in this process."""
        return Client.connect(self.redis, cluster=self.cluster_name, **options)

    async def caller(self, name: str, *, grains: int, wait: bool = True, **options: object) -> CallerProcess:
        """A process that calls so many counters; options as `tests.process.callers` takes them."""
        command = [sys.executable, "-m", "tests.process.callers", "--redis", self.redis]
        command += ["--cluster", self.cluster_name, "--name", name, "--witness", str(self.file)]
        command += ["--grains", str(grains)]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        caller = CallerProcess(name, process)
        self._callers.append(caller)
        if wait:
            await caller.begun()
        return caller

    async def stop_callers(self) -> Tally[str]:
        """Stop all of them; returns how their calls have ended."""
        callers = [caller for caller in self._callers if caller.process.returncode is None]
        ended: Tally[str] = Tally()
        for each in await asyncio.gather(*(caller.stop() for caller in callers)):
            ended.update(each)
        return ended

    # ---------------------------------------------------------------------------------------------------------- members

    async def view(self) -> View:
        """The members as the table shows them now."""
        if self._redis is None:
            self._redis = open_redis(self.redis)
        return await MembersReader(self._redis, self.cluster_name).read()

    async def row(self, name: str) -> SiloRow:
        """The living silo of this name."""
        row = (await self.view()).named(name)
        assert row is not None, f"no living silo is called {name}"
        return row

    async def status_of(self, silo: SiloAddress) -> SiloStatus:
        """How one incarnation stands; a row that has been swept away was dead."""
        row = (await self.view()).row(silo)
        return row.status if row is not None else SiloStatus.DEAD

    async def until(self, holds: Callable[[View], bool], timeout_s: float) -> View:
        """Look at the members until they are as wanted."""
        async with asyncio.timeout(timeout_s):
            while not holds(view := await self.view()):  # noqa: ASYNC110 - nobody here is told of changes
                await asyncio.sleep(ASK_EVERY_S)
        return view

    # ----------------------------------------------------------------------------------------------------------- faults

    async def kill(self, name: str) -> SiloAddress:
        """SIGKILL a silo; returns which incarnation that was."""
        silo = (await self.row(name)).silo
        self.witness(What.FAULT, because=f"kill {name}")
        self.witness(What.SILO_LOST, silo=str(silo), because="killed")
        await self.cluster[name].kill()
        return silo

    async def freeze(self, name: str) -> SiloAddress:
        """SIGSTOP a silo for longer than it has a lease; returns which incarnation that was."""
        silo = (await self.row(name)).silo
        self.witness(What.FAULT, because=f"freeze {name}")
        self.witness(What.SILO_LOST, silo=str(silo), because="it is going to be declared dead")
        self.witness(What.PAUSED, silo=str(silo))
        self.cluster[name].pause()
        return silo

    def thaw(self, name: str, silo: SiloAddress) -> None:
        """SIGCONT it."""
        self.witness(What.RESUMED, silo=str(silo))
        self.cluster[name].resume()

    def healed(self) -> None:
        """From now on calls are answered again."""
        self.witness(What.HEALED)

    # ---------------------------------------------------------------------------------------------------------- verdict

    def now(self) -> float:
        """The time on the witness's clock."""
        return time.monotonic()

    def events(self) -> list[Event]:
        """All that has been witnessed so far, in order."""
        return read_events(self.file)

    async def witnessed(self, matches: Callable[[Event], bool], timeout_s: float = 10.0) -> Event:
        """Look at the witness until it has an event like that; for short histories."""
        async with asyncio.timeout(timeout_s):
            while True:
                for event in self.events():
                    if matches(event):
                        return event
                await asyncio.sleep(ASK_EVERY_S)

    def assert_promises_kept(self, settle_s: float = 0.0) -> list[Event]:
        """Hold the whole history against the promises; returns it."""
        events = self.events()
        found = check(events, settle_s)
        shown = "\n".join(str(violation) for violation in found[:VIOLATIONS_SHOWN_MAX])
        by_rule = dict(Tally(violation.rule for violation in found))
        assert not found, f"{len(found)} violations in {len(events)} events {by_rule}:\n{shown}"
        return events


def turn_of(grain: str) -> Callable[[Event], bool]:
    """Whether an event is the start of a turn of that grain."""
    return lambda event: event.what is What.TURN_STARTED and event.grain == grain


async def ended_with(process: SiloProcess | asyncio.subprocess.Process, timeout_s: float) -> int:
    """The exit code of a process that ends by itself."""
    if isinstance(process, SiloProcess):
        process = process.process
    async with asyncio.timeout(timeout_s):
        return await process.wait()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def in_ms(values: Sequence[float]) -> str:
    """How a set of times is printed."""
    if not values:
        return "none"
    shares = " ".join(f"p{share * 100:g} {percentile(values, share) * 1000:.1f}" for share in (0.5, 0.9, 0.99))
    return f"{len(values)} times: {shares} max {max(values) * 1000:.1f} ms"


def stop_process(pid: int) -> None:
    """SIGSTOP, by its own id."""
    os.kill(pid, signal.SIGSTOP)


def continue_process(pid: int) -> None:
    """SIGCONT, by its own id."""
    os.kill(pid, signal.SIGCONT)
