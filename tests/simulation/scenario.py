"""One seed: a cluster, its load, what befalls it, the quiet after that, and the verdict of the checkers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import traceback
from collections import Counter as Tally
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from silo.directory.errors import SiloError
from silo.directory.membership import SiloStatus
from silo.reference import with_timeout
from silo.testing.history import PATIENT_S, Placed, Violation, bijection, check
from silo.testing.members import SimulatedClient, SimulatedSilo
from silo.testing.nodes import Node, NodeKilled
from silo.testing.store import STORE
from silo.testing.tasks import describe_task
from silo.testing.virtual_time import SimulationFailure, VirtualTimeLoop
from silo.testing.witness import Ended, ListWitness, What
from silo.testing.world import DIRECT_LANE
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.grains import Counter, Relay, Stage, staged, witnessed
from tests.simulation.load import Caller
from tests.simulation.profiles import FAULTS, Act, Beat, Profile, Size, profile_of, script, size_of

SETTLE_S = 20.0
"""How long after the last fault its traces may last: a lease, its judgement, a rejoin, and the deadlines of calls."""
SWEEP_S = 5.0
"""How long after `SETTLE_S` the rows of the dead may lie about."""
LOOK_EVERY_S = 1.0
"""How often it is looked whether the cluster has come to rest."""
STEP_S = 1e-6
"""How far the clock moves with each callback."""
DEADLINES_S = (2.0, 5.0, 10.0)
DEADLINES_PLANNED_S = (15.0, 30.0)
"""Where no call may be lost, deadlines are long enough for what is planned."""
PAUSES_S = (4.0, 7.0, 8.0, 9.0)
"""A silo that is frozen for more than about six seconds is replaced, and wakes up among its own successors."""
LANE_HELD_S = (0.05, 1.2)
LANE_CUT_S = (2.0, 5.0)
"""Links notice in between that nothing comes: `LANES_COME_AND_GO`."""
STAMPEDE_CALLS = 2
SILOS_MAX = 5
VIRTUAL_S_MAX = 600.0
UNSETTLED = (SiloStatus.JOINING, SiloStatus.LEAVING)


@dataclass
class Result:
    """What one seed showed."""

    seed: int
    profile: str
    size: str
    violations: list[Violation] = field(default_factory=list[Violation])
    trace: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    calls: int = 0
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    errors: dict[str, int] = field(default_factory=dict[str, int])
    """By which errors calls ended that were not answered, by name."""
    moves: int = 0
    lanes_broken: int = 0
    """Direct lanes that were broken while the stream was left alone."""
    acts: dict[str, int] = field(default_factory=dict[str, int])
    settled_s: float = SETTLE_S
    """How long after the last fault its traces were gone; from then on nothing is forgiven."""
    failure: str = ""


def run_seed(seed: int, profile: Profile | None = None, size: Size | None = None) -> Result:
    """Run one seed to its end; the same seed gives the same result."""
    profile, size = profile or profile_of(seed), size or size_of(seed)
    rng = random.Random(seed)
    result = Result(seed, profile.name, size.name)
    loop = VirtualTimeLoop(
        random.Random(rng.random()), start_s=rng.uniform(0, 100_000), step_s=STEP_S, seconds_max=VIRTUAL_S_MAX
    )
    gc.disable()  # when it runs must not depend on what ran before
    try:
        with staged(Stage(ListWitness(loop.time))) as stage:
            scenario = Scenario(loop, rng, stage, profile, size, result)
            started = loop.time()
            try:
                loop.run_until_complete(scenario.play())
            except SimulationFailure as error:
                result.failure = f"{type(error).__name__}: {error}"
            except Exception:  # whatever ends the run is what this seed shows
                result.failure = traceback.format_exc()
            result.trace, result.steps, result.virtual_s = loop.trace, loop.steps, loop.time() - started
            _judge(result, stage)
    finally:
        loop.close()
        gc.enable()
    return result


def _judge(result: Result, stage: Stage) -> None:
    events = stage.witness.events
    result.violations += check(events, result.settled_s)
    ended = [event for event in events if event.what is What.CALL_ENDED]
    result.calls = len(ended)
    result.outcomes = dict(sorted(Tally(event.outcome for event in ended).items()))
    result.errors = dict(sorted(Tally(event.because.partition("(")[0] for event in ended if event.because).items()))
    result.moves = sum(1 for event in events if event.what is What.OPENED and event.because == "migration")
    if not any(event.outcome == Ended.VALUE for event in ended):
        result.violations.append(Violation("the cluster serves", "all", "no call at all was answered"))


async def _outcomes(*moves: Coroutine[Any, Any, object]) -> None:
    """Carry out moves; where a fault is near they may fail as calls do, and what they do to grains is what counts."""
    await asyncio.gather(*moves, return_exceptions=True)


def _is_about(profile: Profile, act: Act) -> bool:
    """Whether every world of this profile must have what the act befalls."""
    return act in profile.acts and profile.acts != tuple(Act)


class Scenario:
    """The course of one seed."""

    def __init__(
        self, loop: VirtualTimeLoop, rng: random.Random, stage: Stage, profile: Profile, size: Size, result: Result
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._stage = stage
        self._profile = profile
        self._size = size
        self._result = result
        self._cluster = SimulatedCluster(loop, random.Random(rng.random()), stage, direct=_is_about(profile, Act.LANE))
        self._keys = rng.choice(size.keys)
        self._flashes: list[str] = []
        self._loads: dict[SimulatedClient, tuple[Caller, asyncio.Task[None]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def play(self) -> None:
        cluster, rng = self._cluster, self._rng
        for _ in range(rng.randint(*self._size.silos)):
            await cluster.start_silo()
        for _ in range(rng.randint(*self._size.clients)):
            await self._start_load()
        await self._act_out(script(self._profile, rng, self._size))
        await self._quieten()
        self._expect_no_row_of_the_dead()
        await self._expect_that_all_grains_answer()
        self._result.violations += bijection(cluster.placed_rows(), cluster.placed_activations())
        await self._stop()
        left = [task for task in self._loop.pending_tasks() if task is not asyncio.current_task()]
        self._result.violations += [Violation("no leak", describe_task(task), "it was left behind") for task in left]

    async def _start_load(self) -> None:
        cluster = self._cluster
        process = await cluster.start_client()
        planned = not any(act in FAULTS for act in self._profile.acts)
        caller = Caller(
            process.client,
            process.name,
            random.Random(self._rng.random()),
            workers=self._size.workers,
            keys=self._keys,
            deadlines_s=DEADLINES_PLANNED_S if planned else DEADLINES_S,
        )
        working = process.node.create_task(caller.work(), name=f"load of {process.name}")
        self._loads[process] = caller, working

    # What befalls the cluster

    async def _act_out(self, beats: list[Beat]) -> None:
        started = self._loop.time()
        for beat in beats:
            await asyncio.sleep(max(0.0, started + beat.at_s - self._loop.time()))
            self._result.acts[beat.act] = self._result.acts.get(beat.act, 0) + 1
            if beat.act in FAULTS:
                self._cluster.fault(beat.act)
            task = asyncio.create_task(self._act(beat.act), name=f"act {beat.act}")
            self._running.add(task)
            task.add_done_callback(self._acted)

    def _acted(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        task.result()  # a fault of the scenario itself: the loop is told

    async def _act(self, act: Act) -> None:
        try:
            match act:
                case Act.MOVE | Act.MOVE_BATCH:
                    await self._move(1 if act is Act.MOVE else self._keys)
                case Act.STAMPEDE:
                    await self._stampede()
                case Act.JOIN:
                    if len(self._cluster.processes) < SILOS_MAX:
                        await self._cluster.start_silo()
                case Act.DRAIN | Act.RESTART:
                    await self._drain(restart=act is Act.RESTART)
                case Act.KILL | Act.KILL_CLIENT:
                    self._kill(act)
                case Act.RESET | Act.SLOW:
                    await self._trouble_links(act)
                case Act.HICCUP:
                    await self._hiccup()
                case Act.LANE:
                    await self._trouble_lane()
                case Act.CUT | Act.CUT_ONE_WAY | Act.ISOLATE:
                    await self._cut(act)
                case Act.PAUSE:
                    await self._pause(self._pick_silo(), self._rng.choice(PAUSES_S))
                case _:
                    await self._trouble_store(act)
        except NodeKilled:
            pass  # another act was faster
        except SiloError:
            if not self._cluster.is_disturbed:
                raise

    async def _move(self, count: int) -> None:
        """Ask a client or a silo to move grains, to a silo of ours or wherever placement says."""
        rng, cluster = self._rng, self._cluster
        to = rng.choice((None, *(process.name for process in self._serving())))
        names = [(rng.choice((Counter, Counter, Relay)), str(rng.randrange(self._keys))) for _ in range(count)]
        client, silo = rng.choice(list(cluster.clients.values())), self._pick_silo()
        pressing = asyncio.create_task(self._press(sorted({key for kind, key in names if kind is Counter})))
        try:
            if silo is None or rng.random() < 0.5:
                grains = [client.client.grain(kind, key) for kind, key in names]
                await client.node.run(_outcomes(client.client.migrate_many(grains, to=to)), name="move many")
            else:
                moves = (silo.silo.migrate(silo.silo.grain(kind, key), to=to) for kind, key in names)
                await silo.node.run(_outcomes(*moves), name="move")
        finally:
            await pressing

    async def _press(self, keys: list[str]) -> None:
        """Some client calls these counters while they are to move: what can go wrong then does not wait for chance."""
        if keys and self._loads:
            client, (caller, _) = self._rng.choice(list(self._loads.items()))
            with contextlib.suppress(NodeKilled):
                await client.node.run(caller.press(keys), name=f"{client.name} presses on")

    async def _stampede(self) -> None:
        """Whoever there is calls one new counter, all at once; and once more, by what was learnt of it."""
        key, deadline_s = f"flash-{len(self._flashes)}", DEADLINES_PLANNED_S[0]
        self._flashes.append(key)
        target = f"counter/{key}"

        async def call(node: Node, counter: Counter, caller: str, silo: str = "") -> None:
            send = with_timeout(counter, deadline_s).increment
            with contextlib.suppress(NodeKilled):
                for _ in range(STAMPEDE_CALLS):
                    work = witnessed(send, caller=caller, target=target, deadline_s=deadline_s, silo=silo)
                    await node.run(work, name=f"stampede of {caller}")

        async with asyncio.TaskGroup() as group:
            for client in self._cluster.clients.values():
                group.create_task(call(client.node, client.client.grain(Counter, key), client.name))
            for process in self._serving():
                address = str(process.silo.address)
                group.create_task(call(process.node, process.silo.grain(Counter, key), address, address))

    async def _drain(self, *, restart: bool) -> None:
        process = self._pick_silo()
        if process is None or len(self._serving()) < 2:
            return
        await self._cluster.drain_silo(process)
        if restart:
            await self._cluster.start_silo(endpoint=process.endpoint)

    def _kill(self, act: Act) -> None:
        if act is Act.KILL_CLIENT:
            if len(self._cluster.clients) > 1:
                client = self._rng.choice(list(self._cluster.clients.values()))
                self._loads.pop(client, None)
                self._cluster.kill_client(client)
            return
        process = self._pick_silo()
        if process is not None and len(self._serving()) > 1:
            self._cluster.kill_silo(process)

    async def _trouble_links(self, act: Act) -> None:
        one, other = self._pick_names()
        if act is Act.RESET:
            self._cluster.network.reset(one, self._rng.choice((other, None)))
            return
        self._cluster.network.delay(one, other, (0.05, self._rng.choice((0.1, 0.5))))
        await asyncio.sleep(self._rng.uniform(1.0, 4.0))
        self._cluster.network.delay(one, other, None)

    async def _trouble_lane(self) -> None:
        """The direct lane alone fails: by breaking, or for less or more time than links take to notice it."""
        network, rng = self._cluster.network, self._rng
        silos = list(self._cluster.processes)
        if len(silos) < 2:
            return
        one, other = rng.sample(silos, 2)
        how = rng.choice(("reset", "hold", "cut"))
        if how != "reset":
            network.cut(one, other, one_way=rng.random() < 0.5, way=DIRECT_LANE)
            await asyncio.sleep(rng.uniform(*(LANE_HELD_S if how == "hold" else LANE_CUT_S)))
            network.heal(one, other, way=DIRECT_LANE)
        if how != "hold":
            self._result.lanes_broken += network.reset(one, other, way=DIRECT_LANE)

    async def _hiccup(self) -> None:
        if self._rng.random() < 0.5:
            await self._pause(self._pick_process(), self._rng.uniform(0.05, 0.5))
            return
        one, other = self._pick_names()
        self._cluster.network.cut(one, other, one_way=self._rng.random() < 0.5)
        await asyncio.sleep(self._rng.uniform(0.05, 1.5))
        self._cluster.network.heal(one, other)

    async def _cut(self, act: Act) -> None:
        one, other = self._pick_names()
        network = self._cluster.network
        if act is Act.ISOLATE:
            for name in [*self._cluster.processes, *self._cluster.clients, STORE]:
                if name != one:
                    network.cut(one, name)
        else:
            network.cut(one, other, one_way=act is Act.CUT_ONE_WAY)
        await asyncio.sleep(self._rng.uniform(1.0, 9.0))
        network.heal(one, None if act is Act.ISOLATE else other)

    async def _pause(self, process: SimulatedSilo | SimulatedClient | None, seconds: float) -> None:
        if process is None:
            return
        identity = process.name if isinstance(process, SimulatedClient) else str(process.silo.address)
        self._cluster.freeze(process.node, identity)
        await asyncio.sleep(seconds)
        self._cluster.thaw(process.node, identity)

    async def _trouble_store(self, act: Act) -> None:
        store, lasts_s = self._cluster.store, self._rng.uniform(0.5, 8.0)
        match act:
            case Act.STORE_WIPED:
                self._cluster.world.lose()
                return
            case Act.STORE_SET_BACK:
                set_back = self._cluster.world.keep()
                await asyncio.sleep(lasts_s)
                self._cluster.fault(act)
                set_back()
                return
            case Act.STORE_DOWN:
                store.is_down = True
            case Act.STORE_FAILS:
                store.fails = self._rng.uniform(0.05, 0.5)
            case Act.STORE_LOSES_ANSWERS:
                store.loses_answers = self._rng.uniform(0.05, 0.5)
            case _:
                one = self._pick_silo()
                if one is not None:
                    self._cluster.network.cut(one.name, STORE)
                    await asyncio.sleep(lasts_s)
                    self._cluster.network.heal(one.name, STORE)
                return
        await asyncio.sleep(lasts_s)
        store.heal()

    def _serving(self) -> list[SimulatedSilo]:
        return [process for process in self._cluster.processes.values() if process.serves]

    def _pick_silo(self) -> SimulatedSilo | None:
        serving = self._serving()
        return self._rng.choice(serving) if serving else None

    def _pick_process(self) -> SimulatedSilo | SimulatedClient:
        processes: list[SimulatedSilo | SimulatedClient] = [*self._serving(), *self._cluster.clients.values()]
        return self._rng.choice(processes)

    def _pick_names(self) -> tuple[str, str]:
        silos = list(self._cluster.processes)
        one = self._rng.choice(silos)
        return one, self._rng.choice([name for name in (*silos, *self._cluster.clients) if name != one])

    # The end

    async def _quieten(self) -> None:
        """Let the acts end, heal all, let the load end, and wait until the traces of it all are gone."""
        cluster = self._cluster
        if self._running:
            await asyncio.wait(self._running)
        cluster.heal_all()
        if not self._serving():
            await cluster.start_silo()
        await asyncio.sleep(self._size.aftermath_s)
        for caller, _ in self._loads.values():
            caller.stop()
        for _, working in self._loads.values():
            await working
        cluster.healed()
        await self._settle()

    async def _settle(self) -> None:
        """Wait until nothing shows any more that something was wrong, or until nothing may."""
        healed_at = self._loop.time()
        await asyncio.sleep(self._size.settle_s)
        while not self._has_settled() and self._loop.time() < healed_at + SETTLE_S + SWEEP_S:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_EVERY_S)
        self._result.settled_s = min(SETTLE_S, self._loop.time() - healed_at)

    def _has_settled(self) -> bool:
        """Whether all silos serve, the table says so, and no row of the directory names another; nor may one come late.

        A directory that has lost rows may take its time to be true again; where nothing went wrong it is true at once.
        """
        cluster = self._cluster
        if cluster.world.store.held:
            return False
        living = {str(row.silo) for row in cluster.world.table.table.rows if row.status is SiloStatus.ACTIVE}
        unsettled = [row for row in cluster.world.table.table.rows if row.status in UNSETTLED]
        serving = {str(silo.address) for silo in cluster.hosts().values() if silo.runtime.membership.right.is_held()}
        if not living == serving == self._addresses() or unsettled or self._rows_of_the_dead():
            return False
        had_faults = any(act in FAULTS for act in self._result.acts)
        return not (had_faults and bijection(cluster.placed_rows(), cluster.placed_activations()))

    def _addresses(self) -> set[str]:
        return {str(process.silo.address) for process in self._cluster.processes.values()}

    def _rows_of_the_dead(self) -> list[Placed]:
        alive = self._addresses()
        return [row for row in self._cluster.placed_rows() if row.silo not in alive]

    def _expect_no_row_of_the_dead(self) -> None:
        self._result.violations += [
            Violation("directory true", row.grain, f"the directory still names a silo that is dead: {row}")
            for row in self._rows_of_the_dead()
        ]

    async def _expect_that_all_grains_answer(self) -> None:
        process = await self._cluster.start_client()
        caller = Caller(process.client, process.name, self._rng, workers=0, keys=self._keys, deadlines_s=())
        await process.node.run(caller.touch_all(PATIENT_S, self._flashes), name="touch all grains")

    async def _stop(self) -> None:
        cluster = self._cluster
        for client in list(cluster.clients.values()):
            await client.node.run(client.client.close(), name=f"close {client.name}")
        for process in list(cluster.processes.values()):
            await cluster.drain_silo(process)
        left = cluster.placed_rows()
        self._result.violations += [
            Violation("directory true", row.grain, f"every silo has left, and its row is still there: {row}")
            for row in left
        ]
        cluster.close()
