"""The cluster of a simulated scenario: what its test may do to it, and what it may ask."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from silo.client import Client
from silo.directory.addresses import SiloAddress
from silo.migration.outcome import MigrationOutcome
from silo.reference import grain_id
from silo.serialization.registry import TypeRegistry
from silo.testing.members import Members, SimulatedSilo
from silo.testing.network import DELAY_S
from silo.testing.steps import Place, Planned, Step, Steps
from silo.testing.store import STORE
from silo.testing.tasks import describe_task
from silo.testing.virtual_time import VirtualTimeLoop
from silo.testing.watch import Notes, Watch
from silo.testing.witness import ListWitness

CLIENT: Final = "client"
"""The scenario's own client, as the network knows it."""
SETTLE_S: Final = 20.0
"""How long after the last fault its traces may last: a lease, its judgement, a rejoin, and the deadlines of calls."""
SWEEP_S: Final = 5.0
"""How long after that the rows of the dead may lie about."""


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """How the network of a scenario behaves where the scenario says nothing else."""

    delay_s: tuple[float, float]
    """The range of a message's travelling time, in seconds."""
    reset_every_s: float | None = None
    """How long, on average, until some process's connections break; None for never. Nothing else is ever lost."""


LAN: Final = NetworkProfile(DELAY_S)
"""One hall: 0.1 to 1 ms."""
WAN: Final = NetworkProfile((0.02, 0.08))
"""Two continents: 20 to 80 ms."""
FLAKY: Final = NetworkProfile((0.001, 0.3), reset_every_s=2.0)
"""A bad day: up to 0.3 s, and every other second connections break."""


class NotMoved(AssertionError):
    """A test moved a grain, and it is where it was. `outcome` says why."""

    def __init__(self, outcome: MigrationOutcome) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


class Cluster(Members):
    """The silos of one scenario, each a simulated process, and a client of theirs; `run_simulated` makes it.

    What takes virtual time is awaited; all else happens at once. Processes are named: `silo-1`, `silo-2` and so on,
    `client`, and `redis` for what directory and membership table stand on.
    """

    client: Client
    """Belongs to the scenario itself: it is neither killed nor paused."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        rng: random.Random,
        *,
        kinds: Sequence[type | ModuleType],
        settings: Mapping[str, Any],
        registry: TypeRegistry,
        network: NetworkProfile,
    ) -> None:
        self.steps = Steps()
        witness = ListWitness(loop.time)
        self._watch = Watch(Notes(witness, self.steps))
        super().__init__(
            loop,
            rng,
            witness,
            kinds=kinds,
            settings=settings,
            registry=registry,
            telemetry=self._watch,
            delay_s=network.delay_s,
        )
        self.store.on_registered = self.steps.registered
        self._started = loop.time()
        self._faults: set[str] = set()
        self._open_clients: list[Client] = []
        self._weather: asyncio.Task[None] | None = None
        if network.reset_every_s is not None:
            self._begin("flaky network")
            self._weather = loop.create_task(self._break_connections(network.reset_every_s), name="weather")

    @property
    def now(self) -> float:
        """Virtual seconds since the scenario began; waiting costs no real time."""
        return self.loop.time() - self._started

    @property
    def silos(self) -> tuple[str, ...]:
        """The names of the silos that serve."""
        return tuple(name for name, process in self.processes.items() if process.serves)

    # ----------------------------------------------------------------------------------------------- silos and clients

    async def start(
        self, name: str | None = None, *, kinds: Sequence[type | ModuleType] | None = None, **settings: Any
    ) -> str:
        """Start a silo, wait until it serves, and return its name; a name that has been used starts that silo again.

        Args:
            name: the next free one of `silo-1`, `silo-2` and so on, where none is given.
            kinds: what it hosts, if not what the others do.
            settings: as `SiloSettings` names them, for this silo alone.
        """
        if name is not None and name in self.processes:
            raise ValueError(f"{name} runs already")
        return (await self.start_silo(name, kinds=kinds, **settings)).name

    async def stop(self, name: str) -> None:
        """Let a silo leave in order, as SIGTERM does: its grains move to the others."""
        await self.drain_silo(self._named(name))

    async def restart(self, name: str) -> None:
        """Stop a silo in order and start it again, as a rolling upgrade does."""
        await self.stop(name)
        await self.start(name)

    def kill(self, name: str) -> None:
        """End a silo at once, as SIGKILL does: no hook runs, and the others have to find out."""
        process = self._named(name)
        self._happened(f"{name} killed")
        self._end(f"{name} paused")
        self.kill_silo(process)

    def pause(self, name: str) -> None:
        """Freeze a silo, as SIGSTOP does: what comes in for it waits, and its lease runs out."""
        process = self._named(name)
        self._begin(f"{name} paused")
        self.freeze(process.node, str(process.silo.address))

    def resume(self, name: str) -> None:
        """Let a paused silo go on, as SIGCONT does."""
        process = self._named(name)
        self.thaw(process.node, str(process.silo.address))
        self._end(f"{name} paused")

    async def connect(self, name: str, **options: Any) -> Client:
        """Another client, open and in touch with a silo; the run closes it at its end.

        Args:
            name: as the network is to know it.
            options: as `Client.connect` names them.
        """
        client = self.new_client(name, telemetry=self._watch, **options)
        self._open_clients.append(client)
        await client.open()
        await client.reachable()
        return client

    def _named(self, name: str) -> SimulatedSilo:
        process = self.processes.get(name)
        if process is None:
            raise ValueError(f"no silo called {name!r} runs; these do: {', '.join(self.processes) or 'none'}")
        return process

    # ----------------------------------------------------------------------------------------------------- the network

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Let nothing through from a to b, nor from b to a unless it is `one_way`. What is sent waits for `heal`."""
        self._begin("partition")
        self.network.cut(a, b, one_way=one_way)

    def isolate(self, name: str) -> None:
        """Cut one process off from all others, Redis included."""
        for other in (*self.processes, CLIENT, STORE):
            if other != name:
                self.partition(name, other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """End the partitions between a and b, those of a, or all."""
        self.network.heal(a, b)
        if not self.network.has_cuts:
            self._end("partition")

    def slow(self, a: str, b: str, delay_s: tuple[float, float] | None) -> None:
        """Set the range of travelling times between a and b, in seconds; None for the usual one."""
        what = f"slow {min(a, b)} {max(a, b)}"
        if delay_s is None:
            self._end(what)
        else:
            self._begin(what)
        self.network.delay(a, b, delay_s)

    def reset(self, a: str, b: str | None = None) -> int:
        """Break the connections between a and b, or all of a's, and return how many; what was on its way is lost."""
        self._happened(f"{a} reset")
        return self.network.reset(a, b)

    async def _break_connections(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / every_s))
            self.network.reset(self.rng.choice([*self.processes, CLIENT]))

    # ----------------------------------------------------------------------------------------------------------- redis

    def redis_down(self) -> None:
        """Stop Redis: nobody reaches the directory or the membership table.

        To take it from one silo alone, `partition` that silo from `redis`.
        """
        self._begin(STORE)
        self.store.is_down = True

    def redis_up(self) -> None:
        """Redis is back, with its data, and reliable."""
        self.store.heal()
        self._end(STORE)

    def redis_unreliable(self, *, loses_requests: float = 0.0, loses_answers: float = 0.0) -> None:
        """Let Redis lose a share, from 0 to 1, of the requests, or of the answers to what it has carried out."""
        self._begin(STORE)
        self.store.fails, self.store.loses_answers = loses_requests, loses_answers

    def redis_wiped(self) -> None:
        """Redis forgets, in one moment, all that the silos keep there, as with FLUSHALL; what grains stored stays."""
        self._happened(f"{STORE} wiped")
        self.world.lose()

    def redis_kept(self) -> Callable[[], None]:
        """Copy what silos keep in Redis. What is returned has Redis start again with that, as with an older dump."""
        restore = self.world.keep()

        def set_back() -> None:
            self._happened(f"{STORE} set back")
            restore()

        return set_back

    # ---------------------------------------------------------------------------------------------------------- grains

    async def migrate(
        self, grain: Any, *, to: str | SiloAddress | None = None, force: bool = False
    ) -> MigrationOutcome:
        """Move a grain, and fail if it did not move; `client.migrate` tells the outcome and leaves judging to you.

        Raises:
            NotMoved: it is where it was.
        """
        outcome = await self.client.migrate(grain, to=to, force=force)
        if not outcome.moved:
            raise NotMoved(outcome)
        return outcome

    def when(self, step: Step, do: Callable[[Place], object], *, grain: Any = None, times: int = 1) -> Planned:
        """Do something, at once, when a grain comes to this step; the run fails where none comes to it.

        ```python
        cluster.when(Step.OFFER, lambda at: cluster.kill(at.source))
        ```

        Args:
            grain: this one only; any if left out.
            times: how often.
        """

        def act(place: Place) -> None:
            self._happened(str(step))
            do(place)

        return self.steps.plan(step, None if grain is None else grain_id(grain), times, act)

    def fail(self, step: Step, *, grain: Any = None, times: int = 1) -> Planned:
        """Let the grain's own code raise where it runs in this step: a hook, a participant, or its constructor.

        Raises:
            ValueError: no code of the grain runs in this step.
        """
        return self.steps.plan(step, None if grain is None else grain_id(grain), times, None)

    # ------------------------------------------------------------------------------------------- faults, and their end

    def _begin(self, fault: str) -> None:
        self._faults.add(fault)
        self.fault(fault)

    def _end(self, fault: str) -> None:
        if fault in self._faults:
            self._faults.discard(fault)
            if not self._faults:
                self.healed()

    def _happened(self, fault: str) -> None:
        """A fault of one moment."""
        self.fault(fault)
        if not self._faults:
            self.healed()

    async def settle(self) -> None:
        """End every fault, and wait until the cluster has got over them."""
        await self._stop_weather()
        self.heal_all()
        self._faults.clear()
        if self.is_disturbed:
            self.healed()
        await asyncio.sleep(SETTLE_S + SWEEP_S)

    async def _stop_weather(self) -> None:
        if self._weather is not None:
            self._weather.cancel()
            await asyncio.wait([self._weather])
            self._weather = None

    async def open(self, silos: int) -> None:
        """Start so many silos and the scenario's client, and wait until all know of each other."""
        for _ in range(silos):
            await self.start()
        await self.seen(lambda: all(len(silo.view.active()) == silos for silo in self.hosts().values()))
        self.client = self.new_client(CLIENT, telemetry=self._watch)
        self._open_clients.append(self.client)
        await self.client.open()
        if silos:
            await self.client.reachable()

    async def shut_down(self) -> list[str]:
        """End clients and silos in order. Returns the tasks that are left behind."""
        await self._stop_weather()
        for client in self._open_clients:
            await client.close()
        for process in list(self.processes.values()):
            await self.drain_silo(process)
        self.close()
        return [describe_task(task) for task in self.loop.pending_tasks() if task is not asyncio.current_task()]
