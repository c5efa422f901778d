"""One chaos run: warm up, storm, quiet, and the verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from silo.client import Client
from silo.directory.addresses import GrainId
from silo.directory.errors import SiloError
from silo.directory.lease_settings import LeaseSettings
from silo.reference import with_timeout
from silo.testing.history import PATIENT_S, Violation
from silo.testing.witness import read_events
from tests.chaos.census import all_taken, disagreements
from tests.chaos.cluster import CLUSTER, ChaosCluster, Lane
from tests.chaos.grains import Relay, Tallied
from tests.chaos.moves import MoveStream
from tests.chaos.nemesis import Nemesis
from tests.chaos.schedule import Beat, Cast, schedule
from tests.chaos.verdict import Verdict, judge
from tests.chaos.vitals import Vitals, leaks, most
from tests.process.witnessed import WitnessedCaller

AGREE_WITHIN_S: Final = 10.0
"""How long after the quiet has begun directory and catalogs may differ."""
LEAKS_END_WITHIN_S: Final = 20.0
"""How long after it the last sessions, tasks and connections of the storm may linger."""
MOVES_END_WITHIN_S: Final = 30.0
SETTLE_LEASES: Final = 6.0
"""How long after a fault its traces may last: a verdict, a rejoin, and the deadlines of calls."""
LOOK_EVERY_S: Final = 0.25
LOOKS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is made of. The same plan makes the same schedule.

    Args:
        call_rate: calls per second of each caller, about.
        move_rate: migrations per second.
        lane: by which ways the silos have the direct lane.
    """

    seconds: float
    seed: int
    silos: int = 3
    callers: int = 2
    lease_s: float = 2.0
    grains: int = 80
    call_rate: float = 60.0
    move_rate: float = 18.0
    warm_s: float = 5.0
    wipe: bool = False
    lane: Lane = Lane.TCP

    @property
    def settle_s(self) -> float:
        """How long after the last fault its traces may last. In a wiped store new grains may have to wait for as long
        as silos that do not come back could go on by their leases."""
        waited_s = LeaseSettings(lease_s=self.lease_s).wait_alone_s if self.wipe else 0.0
        return SETTLE_LEASES * self.lease_s + 1.0 + waited_s


@dataclass
class Bench:
    """Plays one plan.

    Args:
        folder: keeps the evidence.
        tell: told what happens as it does.
        beats: what is to befall the cluster, in place of what the plan's seed makes.
    """

    plan: Plan
    folder: Path
    tell: Callable[[str], None]
    beats: Sequence[Beat] = ()
    _violations: list[Violation] = field(default_factory=list[Violation])

    def __post_init__(self) -> None:
        plan = self.plan
        rng = random.Random(plan.seed)
        self._silos = tuple(f"silo-{number}" for number in range(1, plan.silos + 1))
        self._callers = tuple(f"caller-{number}" for number in range(1, plan.callers + 1))
        cast = Cast(self._silos, self._callers, plan.lease_s, plan.wipe)
        self.beats = self.beats or schedule(plan.seconds, cast, rng)
        (self.folder / "schedule.txt").write_text("".join(f"{beat}\n" for beat in self.beats), encoding="utf-8")
        self._rng = rng

    async def run(self) -> Verdict:
        """Play it, and judge what was seen."""
        plan, rng = self.plan, self._rng
        cluster = ChaosCluster(
            self.folder,
            silos=self._silos,
            callers=self._callers,
            lease_s=plan.lease_s,
            grains=plan.grains,
            rate=plan.call_rate,
            rng=rng,
            lane=plan.lane,
        )
        async with cluster, cluster.client() as client:
            nemesis = Nemesis(cluster, plan.lease_s, self.tell)
            moves = MoveStream(
                client,
                grains=[GrainId.of(kind, str(key)) for kind in ("tally", "relay") for key in range(plan.grains)],
                silos=self._silos,
                rate=plan.move_rate,
                rng=random.Random(rng.getrandbits(32)),
            )
            self.tell(f"{plan.silos} silos and {plan.callers} callers are up; warming up for {plan.warm_s:g} s")
            await self._load(cluster, moves, asyncio.sleep(plan.warm_s))
            before = await self._vitals(cluster, client)
            self.tell(f"the nemesis has {len(self.beats)} acts for {plan.seconds:g} s")
            await self._load(cluster, moves, self._storm(cluster, nemesis))
            self.tell("quiet: every grain is called, and everybody is counted")
            await self._touch_all(cluster, client)
            await self._agree(cluster, client)
            await self._no_leaks(cluster, client, before)
            self._violations += cluster.violations
            counts = {
                "silos_lost": cluster.members.lost,
                "stalled_s": round(cluster.stalled_s, 1),
                "starts_failed": cluster.starts_failed,
                "answers_lost": cluster.network.answers_lost,
                "unnamed": cluster.network.unnamed,
                "pieces_carried": dict(cluster.network.carried),
                "pieces_held": dict(cluster.network.held),
                "connections_broken": dict(cluster.network.broken),
            }
        events = read_events(cluster.file)
        return judge(events, self._violations, plan.settle_s, nemesis.done, moves.outcomes, counts)

    async def _storm(self, cluster: ChaosCluster, nemesis: Nemesis) -> None:
        await nemesis.play(self.beats, self.plan.seconds)
        await nemesis.heal()

    async def _load(self, cluster: ChaosCluster, moves: MoveStream, meanwhile: Awaitable[None]) -> None:
        """Calls and moves for as long as that takes, and until all have ended."""
        await asyncio.gather(*(caller.tell("go") for caller in cluster.callers.values()))
        moving = asyncio.create_task(moves.run(), name="stream of moves")
        await meanwhile
        moving.cancel()
        await asyncio.wait([moving], timeout=MOVES_END_WITHIN_S)
        if moving.done():
            moving.result()
        else:
            text = f"{moves.open} have no outcome {MOVES_END_WITHIN_S:g} s after all is well"
            self._violations.append(Violation("moves end", "the stream", text))
        await asyncio.gather(*(caller.tell("rest") for caller in cluster.callers.values()))

    async def _touch_all(self, cluster: ChaosCluster, client: Client) -> None:
        """Every grain answers again, and has the state that the witness says."""
        caller = WitnessedCaller(cluster.witness, "bench")

        async def touch(key: str) -> None:
            counter = with_timeout(client.grain(Tallied, key), PATIENT_S)
            relay = with_timeout(client.grain(Relay, key), PATIENT_S)

            async def forward(call: str) -> int:
                return await relay.forward(call, key, 0)

            for grain, send in ((f"tally/{key}", counter.increment), (f"relay/{key}", forward)):
                if await caller.call(send, target=grain, deadline_s=PATIENT_S) is None:
                    text = f"it does not answer within {PATIENT_S:g} s though all is well"
                    self._violations.append(Violation("call answered", grain, text))

        await asyncio.gather(*(touch(str(key)) for key in range(self.plan.grains)))

    async def _agree(self, cluster: ChaosCluster, client: Client) -> None:
        silos = {name: str(cluster.members.current(name)) for name in cluster.silos}
        self._violations += await _until_none(
            lambda: disagreements(client, cluster.redis.url, CLUSTER, silos), AGREE_WITHIN_S
        )

    async def _vitals(self, cluster: ChaosCluster, client: Client) -> dict[str, Vitals]:
        censuses = await all_taken(client, cluster.silos)
        found = {name: census.vitals for name, census in censuses.items()}
        for name, caller in cluster.callers.items():
            vitals = (await caller.tell("vitals")).vitals
            assert vitals is not None
            found[name] = vitals
        return found

    async def _no_leaks(self, cluster: ChaosCluster, client: Client, before: dict[str, Vitals]) -> None:
        """Silos are alike, and processes come and go: each is compared with the largest of its sort."""
        allowed = {
            **dict.fromkeys(self._silos, most(before[name] for name in self._silos)),
            **dict.fromkeys(self._callers, most(before[name] for name in self._callers)),
        }

        async def look() -> list[Violation]:
            after = await self._vitals(cluster, client)
            return [leak for name, vitals in after.items() for leak in leaks(name, allowed[name], vitals)]

        self._violations += await _until_none(look, LEAKS_END_WITHIN_S)


async def _until_none(look: Callable[[], Awaitable[list[Violation]]], within_s: float) -> list[Violation]:
    """Look until there are none; after that time, and some looks at least, those that are left."""
    until, looks = time.monotonic() + within_s, 0
    while True:
        looks += 1
        try:
            found = await look()
        except SiloError as error:
            found = [Violation("call answered", "census", f"it could not be taken though all is well: {error!r}")]
        if not found or (time.monotonic() > until and looks >= LOOKS_MIN):
            return found
        await asyncio.sleep(LOOK_EVERY_S)
