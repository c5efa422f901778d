"""The cluster of a chaos run: Redis, silos and callers as processes, with a door between any two of them."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import random
import socket
import sys
import time
from collections import Counter as Tally
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from silo.client import Client
from silo.embedded import EmbeddedServer
from silo.testing.history import Violation
from silo.testing.processes import ProcessCluster, SiloProcess, SiloProcessFailed
from silo.testing.witness import Event, FileWitness, What
from tests.chaos.callers import Answer
from tests.chaos.members import MembersWatch
from tests.chaos.network import LANE, Network
from tests.chaos.schedule import REDIS
from tests.process.grains import WITNESS_VARIABLE

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER: Final = "chaos"
BENCH: Final = "bench"
"""The name of the bench's own client, which is no party: nothing troubles its connections."""
START_TRIES_MAX: Final = 20
ANSWER_TIMEOUT_S: Final = 60.0
"""How long a caller may take to answer a command: all of its calls have ended by then."""
SHUTDOWN_TIMEOUT_S: Final = 15.0
LANE_RETRY_S: Final = 1.0
"""So soon after the direct lane broke it is taken again: it is to be there when the next fault comes."""
STALL_S: Final = 0.75
"""A machine on which nothing ran for so long has befallen the cluster, too: it counts as a fault, and as a pause."""
LOOK_EVERY_S: Final = 0.1


class Lane(enum.StrEnum):
    """By which ways the silos of a run have the direct lane."""

    TCP = "tcp"
    SOCKETS = "sockets"
    OFF = "off"


LANE_SETTINGS: Final[Mapping[Lane, Sequence[str]]] = {
    Lane.TCP: ["direct_local=false"],
    Lane.SOCKETS: [],
    Lane.OFF: ["direct=false"],
}


class CallerProcess:
    """One caller, which obeys commands."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    async def tell(self, command: str) -> Answer:
        """Give a command and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n".encode())
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {await self.process.wait()} at the command {command}")
        return msgspec.json.decode(line, type=Answer)


class ChaosCluster:
    """All processes of a run. What still runs at the end of the block is killed.

    Args:
        folder: where witness, logs and the server's data go.
        rng: seeds the callers.
        lane: by which ways silos have the direct lane. What goes by sockets goes through no door.
    """

    def __init__(
        self,
        folder: Path,
        *,
        silos: Sequence[str],
        callers: Sequence[str],
        lease_s: float,
        grains: int,
        rate: float,
        rng: random.Random,
        lane: Lane = Lane.TCP,
    ) -> None:
        self.silos = tuple(silos)
        self.file = folder / "witness.jsonl"
        self.witness = FileWitness(self.file)
        (folder / "redis").mkdir()
        self.redis = EmbeddedServer(directory=folder / "redis", appendonly=True)
        self.redis_files = folder / "redis" / "appendonlydir"
        """Where the server keeps its data."""
        self.network = Network()
        self.violations: list[Violation] = []
        self.starts_failed = 0
        self.stalled_s = 0.0
        self._folder = folder
        self._caller_names = tuple(callers)
        self._lease_s = lease_s
        self._grains = grains
        self._rate = rate
        self._lane = lane
        self._rng = rng
        self.callers: dict[str, CallerProcess] = {}
        self.up: dict[str, SiloProcess] = {}
        """The silos that run, by name; frozen ones included."""
        self._endpoints: dict[str, str] = {}
        self._options: dict[str, list[str]] = {}
        self._disturbances: Tally[str] = Tally()
        self._faults_begun = 0
        self._ending: set[int] = set()
        self._exit = contextlib.AsyncExitStack()
        self._guards: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as entered:
            entered.callback(self.witness.close)
            await entered.enter_async_context(self.redis)
            await entered.enter_async_context(self.network)
            self._processes = await entered.enter_async_context(self._process_cluster())
            entered.push_async_callback(self._end_guards)
            entered.push_async_callback(self._end_callers)
            self.members = MembersWatch(self.redis.url, CLUSTER, self.witness, lambda: self.is_disturbed)
            watching = asyncio.create_task(self.members.run(), name="watch the members")
            entered.push_async_callback(self._ended, watching)
            stalls = asyncio.create_task(self._watch_stalls(), name="watch the machine")
            entered.push_async_callback(self._ended, stalls)
            await asyncio.gather(*(self._open_doors(name) for name in self.silos))
            await asyncio.gather(*(self.start(name) for name in self.silos))
            for name in self._caller_names:
                await self._start_caller(name)
            self._exit = entered.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, trace)

    def client(self) -> Client:
        """The bench's own client; its way to Redis is always clear."""
        return Client.connect(self.redis.url, cluster=CLUSTER, role="admin", name=BENCH)

    # ------------------------------------------------------------------------------------------------------------ silos

    async def start(self, name: str) -> None:
        """Start a silo, and again should it not come up: Redis may be away."""
        for tries in range(1, START_TRIES_MAX + 1):
            disturbed, faults, stalled_s = self.is_disturbed, self._faults_begun, self.stalled_s
            try:
                process = await self._processes.start(name, listen=self._endpoints[name], options=self._options[name])
            except SiloProcessFailed as error:
                self.starts_failed += 1
                await asyncio.sleep(2 * LOOK_EVERY_S)  # whoever watches for stalls is to have looked
                excused = disturbed or self._faults_begun > faults or self.stalled_s > stalled_s
                if not excused or tries == START_TRIES_MAX:
                    self.violations.append(Violation("process runs", name, str(error)))
                    raise
            else:
                self.up[name] = process
                guard = asyncio.create_task(self._guard(name, process), name=f"guard {name}")
                self._guards.add(guard)
                guard.add_done_callback(self._guards.discard)
                return

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self._let_go(name)
        silo = self.members.current(name)
        if silo is not None:
            self.members.tell_lost(silo, time.monotonic(), "killed")
        await process.kill()

    async def stop(self, name: str) -> None:
        """SIGTERM; it drains."""
        process = self._let_go(name)
        code = await process.stop()
        if code != 0 and not self.is_disturbed:
            self.violations.append(Violation("process runs", name, f"told to stop it ended with {code}"))

    def _let_go(self, name: str) -> SiloProcess:
        process = self.up.pop(name)
        self._ending.add(process.pid)
        return process

    async def _guard(self, name: str, process: SiloProcess) -> None:
        """A silo that ends by itself is a violation, whatever befell it."""
        code = await process.process.wait()
        if process.pid not in self._ending:
            self.up.pop(name, None)
            self.violations.append(Violation("process runs", name, f"it ended by itself with {code}"))

    # ----------------------------------------------------------------------------------------------------------- faults

    @property
    def is_disturbed(self) -> bool:
        """Whether a fault goes on."""
        return self._disturbances.total() > 0

    @contextlib.contextmanager
    def fault(self, what: str) -> Generator[None]:
        """For as long as the block lasts, calls may fail."""
        self._disturbances[what] += 1
        self._faults_begun += 1
        self.witness(What.FAULT, because=what)
        try:
            yield
        finally:
            self._disturbances[what] -= 1
            if not self.is_disturbed:
                self.witness(What.HEALED)

    async def _watch_stalls(self) -> None:
        """Tell of times in which this process did not run, nor carry anything between the parties."""
        while True:
            asleep_at = time.monotonic()
            await asyncio.sleep(LOOK_EVERY_S)
            awake_at = time.monotonic()
            if awake_at - asleep_at < LOOK_EVERY_S + STALL_S:
                continue
            self.stalled_s += awake_at - asleep_at
            parties = [*self._caller_names, *map(str, self.members.alive)]
            with self.fault("stall"):
                for party in parties:
                    self.witness.take(Event(what=What.PAUSED, at=asleep_at, silo=party))
                    self.witness.take(Event(what=What.RESUMED, at=awake_at, silo=party))
            self.witness.take(Event(what=What.FAULT, at=asleep_at, because="stall"))

    # ---------------------------------------------------------------------------------------------------------- parties

    async def _open_doors(self, name: str) -> None:
        host = f"127.0.{self._rng.randrange(1, 250)}.{self._rng.randrange(1, 250)}"  # nobody dials from there
        with socket.socket() as listener, socket.socket() as lane:
            listener.bind((host, 0))
            lane.bind((host, 0))
            port: int = listener.getsockname()[1]
            lane_port: int = lane.getsockname()[1]
        door = await self.network.door(name, host, port)
        lane_door = await self.network.door(name, host, lane_port, way=LANE)
        self._endpoints[name] = f"{host}:{port}"
        self.network.know(name, f"127.0.0.1:{door}@")
        self._options[name] = ["--advertise", f"127.0.0.1:{door}", "--redis", await self._redis_door(name)]
        for setting in (
            f"direct_port={lane_port}",
            f"direct_advertise=127.0.0.1:{lane_door}",
            *LANE_SETTINGS[self._lane],
        ):
            self._options[name] += ["--set", setting]

    async def _redis_door(self, name: str) -> str:
        door = await self.network.door(REDIS, "127.0.0.1", self.redis.port, dialler=name, way=REDIS)
        return f"redis://127.0.0.1:{door}"

    async def _start_caller(self, name: str) -> None:
        self.network.know(name, f"{name}-")
        command = [sys.executable, "-m", "tests.chaos.callers", "--redis", await self._redis_door(name)]
        command += ["--cluster", CLUSTER, "--name", name, "--witness", str(self.file)]
        command += ["--grains", str(self._grains), "--rate", str(self._rate), "--lease-s", str(self._lease_s)]
        command += ["--seed", str(self._rng.getrandbits(32))]
        with (self._folder / "logs" / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        self.callers[name] = CallerProcess(name, process)

    def _process_cluster(self) -> ProcessCluster:
        return ProcessCluster(
            ["tests.chaos.grains"],
            redis=self.redis.url,
            cluster=CLUSTER,
            settings={
                "lease.lease_s": self._lease_s,
                "migration.shutdown_timeout_s": SHUTDOWN_TIMEOUT_S,
                "link.direct_trust_s": LANE_RETRY_S,
                "link.direct_retry_s": LANE_RETRY_S,
            },
            environment={WITNESS_VARIABLE: str(self.file), "PYTHONPATH": str(ROOT)},
            logs=self._folder / "logs",
        )

    # -------------------------------------------------------------------------------------------------------------- end

    async def _end_callers(self) -> None:
        for caller in self.callers.values():
            if caller.process.returncode is None:
                caller.process.kill()
            await caller.process.wait()

    async def _end_guards(self) -> None:
        for guard in list(self._guards):
            await self._ended(guard)

    @staticmethod
    async def _ended(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
