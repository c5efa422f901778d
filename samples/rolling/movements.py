"""Moves that are ordered, and restarts: what happens to the cluster while its grains are called."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from samples.local_cluster import LocalCluster, local_cluster
from samples.rolling.load import Load
from samples.rolling.meter import Meter
from samples.rolling.steps import Steps
from silo import NotExecuted, OutcomeUnknown

BATCH_MAX = 10
"""Grains that are moved to one silo at a time."""

START_S = 3.0
"""About how long it takes until the cluster serves and every grain has answered, for the progress bar."""
RESTART_S = 3.0
"""About how long a restart takes, for the progress bar."""


@dataclass(frozen=True)
class Restart:
    """One silo, stopped and started again."""

    silo: str
    exit_code: int
    stop_s: float
    """Until it had moved its grains elsewhere and ended."""
    start_s: float
    """Until it served again."""


@dataclass
class Movements:
    """Moves grains between the silos of a cluster, and restarts these; keeps account of both."""

    cluster: LocalCluster
    load: Load
    rng: random.Random
    pauses_s: list[float] = field(default_factory=list[float])
    """How long each move that was ordered kept its grain from running calls."""
    not_made: Counter[str] = field(default_factory=Counter[str])
    """Why moves were refused or taken back. The grain then stays where it is, and nothing is lost."""
    restarts: list[Restart] = field(default_factory=list[Restart])

    async def move(self, meters: Sequence[Meter], to: str) -> None:
        """Move these grains, and wait for the outcomes."""
        try:
            outcomes = await self.cluster.client.migrate_many(meters, to=to)
        except (NotExecuted, OutcomeUnknown) as error:
            self.not_made[str(error)] += 1
            return
        for outcome in outcomes:
            if outcome.moved:
                self.pauses_s.append(outcome.pause_s)
                self.load.moved(outcome.grain.key, outcome.target_name)
            elif outcome.source != outcome.target:  # else its caller has not heard yet that it is there
                self.not_made[outcome.why] += 1

    async def move_at_random(self, seconds: float) -> None:
        """Move grains about, a batch at a time, to one silo after the other."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            to = self.rng.choice(self.cluster.names)
            elsewhere = self._elsewhere(to)
            await self.move(self.rng.sample(elsewhere, min(BATCH_MAX, len(elsewhere))), to)

    async def restart(self, name: str) -> None:
        """Stop a silo, which moves its grains elsewhere, start it again, and move its fair share of grains to it."""
        began = time.monotonic()
        exit_code = await self.cluster.silos[name].stop()
        stopped = time.monotonic()
        await self.cluster.silos.start(name)
        self.restarts.append(Restart(name, exit_code, round(stopped - began, 3), round(time.monotonic() - stopped, 3)))
        elsewhere = self._elsewhere(name)
        share = len(self.load.meters) // len(self.cluster.names)
        chosen = self.rng.sample(elsewhere, min(share, len(elsewhere)))
        for first in range(0, len(chosen), BATCH_MAX):
            await self.move(chosen[first : first + BATCH_MAX], name)
        await self.load.round()

    def _elsewhere(self, name: str) -> list[Meter]:
        where = self.load.tally.where
        return [meter for meter, silo in zip(self.load.meters, where, strict=True) if silo != name]


@contextlib.asynccontextmanager
async def cluster_under_load(
    module: str, steps: Steps, *, silos: int, grains: int, calls_per_s: float, seed: int
) -> AsyncGenerator[Movements]:
    """Start a cluster and call its grains; once all have answered, the block may do with the cluster as it likes."""
    async with contextlib.AsyncExitStack() as stack:
        with steps.step(f"{silos} silos start", expected_s=START_S):
            cluster = await stack.enter_async_context(local_cluster(module, silos=silos))
            load = Load(cluster.client, steps.tally, grains=grains, calls_per_s=calls_per_s, rng=random.Random(seed))
            await stack.enter_async_context(load.running())
            await load.round()
        yield Movements(cluster, load, random.Random(seed))
