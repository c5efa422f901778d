"""The grains of the chaos bench, hosted by `silo run tests.chaos.grains`: counters, their callers, and a census."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from typing import Any

from silo.activation.catalog import Catalog
from silo.grain import Grain, grain, read_only
from silo.grain_context import current_activation
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.reference import with_timeout
from silo.testing.witness import What
from tests.chaos.vitals import Vitals, measure
from tests.process.grains import WitnessedGrain
from tests.process.witnessed import WitnessedCaller

NESTED_DEADLINE_S = 3.0
"""The deadline of calls that relays make."""


class MovingGrain(WitnessedGrain):
    """A witnessed grain that tells of its dehydrations and rehydrations, too."""

    def on_dehydrate(self, context: DehydrateContext) -> None:
        self._tell(What.DEHYDRATED, value=self.count)

    def on_rehydrate(self, context: RehydrateContext) -> None:
        self._witness(What.REHYDRATED, grain=str(self.id), value=self.count)


@grain(kind="tally")
class Tallied(MovingGrain):
    """Counts its turns: at once, slowly, and moving on by itself."""

    async def increment(self, call: str, takes_s: float = 0.0) -> int:
        with self._turn(call):
            if takes_s > 0:
                await asyncio.sleep(takes_s)
            self.count += 1
        return self.count

    async def increment_and_move(self, call: str) -> int:
        """Count, and ask for a move to wherever placement says."""
        with self._turn(call):
            self.count += 1
            self.migrate()
        return self.count


@grain(kind="relay")
class Relay(MovingGrain):
    """Calls counters in its turns: calls between silos."""

    def __init__(self) -> None:
        super().__init__()
        self._caller: WitnessedCaller | None = None

    async def forward(self, call: str, target: str, times: int) -> int:
        with self._turn(call):
            if self._caller is None:  # each activation is a caller of its own: the order of calls is kept for each
                name = f"{self.id}#{self._activation}"
                self._caller = WitnessedCaller(self._witness, name, silo=self._incarnation, activation=self._activation)
            counter = with_timeout(self.grain(Tallied, target), NESTED_DEADLINE_S)
            for _ in range(times):
                await self._caller.call(counter.increment, target=f"tally/{target}", deadline_s=NESTED_DEADLINE_S)
            self.count += 1
        return self.count


@dataclass(frozen=True, slots=True)
class Living:
    """One activation in a catalog."""

    grain: str
    activation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SiloCensus:
    """What one silo process hosts and takes."""

    silo: str
    catalogs: int
    """Catalogs that are still in memory; of earlier incarnations there should be none."""
    living: tuple[Living, ...]
    vitals: Vitals


@grain(kind="census", migratable=False)
class Census(Grain):
    """Counts what its silo hosts, itself included, and what its process takes."""

    @read_only
    async def take(self) -> SiloCensus:
        context: Any = current_activation()
        here = context.entry.silo
        gc.collect()
        catalogs = [each for each in gc.get_objects() if isinstance(each, Catalog)]
        living = (
            Living(str(activation.id), activation.activation_id, activation.entry.epoch if activation.entry else 0)
            for catalog in catalogs
            if catalog.me == here
            for activation in catalog
        )
        return SiloCensus(str(here), len(catalogs), tuple(living), measure())
