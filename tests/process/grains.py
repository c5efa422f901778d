"""The grains of the process tests, hosted by `silo run tests.process.grains`: counters that witness all that they do.

A counter's soft state is how often it ran; the checker knows what that must be at any time.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from silo.grain import Grain, grain, read_only, soft_state
from silo.grain_context import current_activation
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.reference import with_timeout
from tests.process.witnessed import WitnessedCaller
from tests.support.witness import FileWitness, What

WITNESS_VARIABLE = "SILO_TEST_WITNESS"
"""Names the file to which silo processes tell what happens; without it they tell nobody."""
NESTED_DEADLINE_S = 5.0
"""The deadline of calls that counters make."""


@functools.cache
def process_witness() -> FileWitness:
    """The witness of this process."""
    return FileWitness(os.environ.get(WITNESS_VARIABLE, os.devnull))


class WitnessedGrain(Grain):
    """A counter of its own turns."""

    count: int = soft_state(default=0)

    def __init__(self) -> None:
        self._witness = process_witness()
        self._activation = ""
        self._incarnation = ""

    async def on_activate(self, reason: ActivationReason) -> None:
        activation: Any = current_activation.get()
        self._activation = activation.activation_id
        self._incarnation = str(activation.entry.silo)
        self._tell(What.OPENED, value=self.count, because=reason.value)

    async def on_migrating(self, notice: MigrationNotice) -> None:
        self._tell(What.HOLDING, because=notice.reason)

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        self._tell(What.CLOSED, because=reason.value)

    def _tell(self, what: What, **more: Any) -> None:
        self._witness(what, grain=str(self.id), activation=self._activation, silo=self._incarnation, **more)

    @contextmanager
    def _turn(self, call: str) -> Generator[None]:
        self._tell(What.TURN_STARTED, call=call)
        value = None
        try:
            yield
            value = self.count
        finally:
            self._tell(What.TURN_ENDED, call=call, value=value)


@grain(kind="counter")
class Counter(WitnessedGrain):
    """Counts its turns: at once, slowly, busily, and with a call of its own at the end."""

    async def increment(self, call: str, takes_s: float = 0.0) -> int:
        with self._turn(call):
            if takes_s > 0:
                await asyncio.sleep(takes_s)
            self.count += 1
        return self.count

    async def burn(self, call: str, takes_s: float) -> int:
        """Keep the silo's event loop busy: nothing else runs there meanwhile."""
        with self._turn(call):
            until = time.monotonic() + takes_s
            while time.monotonic() < until:
                pass
            self.count += 1
        return self.count

    async def increment_then_tell(self, call: str, other: str, takes_s: float) -> int:
        """Take a while, and only then call another counter."""
        with self._turn(call):
            await asyncio.sleep(takes_s)
            caller = WitnessedCaller(self._witness, str(self.id), calls=f"{call}-tells", silo=self._incarnation)
            counter = with_timeout(self.grain(Counter, other), NESTED_DEADLINE_S)
            await caller.call(counter.increment, target=f"counter/{other}", deadline_s=NESTED_DEADLINE_S)
            self.count += 1
        return self.count

    @read_only
    async def read(self) -> int:
        """How many turns it has counted; not witnessed."""
        return self.count

    @read_only
    async def where(self) -> str:
        """The incarnation that hosts it; not witnessed."""
        return self._incarnation


@grain(kind="vault")
class Vault(Grain):
    """Stores what it is given before it says so."""

    entries: Persistent[list[int]] = persistent(list)

    async def put(self, number: int) -> None:
        self.entries.value.append(number)
        await self.entries.write()

    @read_only
    async def look(self) -> list[int]:
        return self.entries.value


@grain(kind="mirror")
class Mirror(Grain):
    """Gives back what it gets."""

    async def reflect(self, block: bytes) -> bytes:
        return block
