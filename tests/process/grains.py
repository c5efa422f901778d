"""The grains of the process tests, hosted by `silo run tests.process.grains`: counters that witness all that they do.

A counter's soft state is how often it ran; the checker knows what that must be at any time.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from silo.grain import Grain, grain, read_only, soft_state
from silo.grain_context import current_activation
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.reference import with_timeout
from silo.testing.witness import FileWitness, What
from tests.process.witnessed import WitnessedCaller

WITNESS_VARIABLE = "SILO_TEST_WITNESS"
"""Names the file to which silo processes tell what happens; without it they tell nobody."""
NESTED_DEADLINE_S = 5.0
"""The deadline of calls that counters make."""
OFFER_TIMEOUT_S = 0.5
"""How long a source waits for its target, in tests of a target that says nothing."""
FENCED_AFTER_S = 2 * OFFER_TIMEOUT_S


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
        activation: Any = current_activation()
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
            caller = WitnessedCaller(
                self._witness,
                str(self.id),
                calls=f"{call}-tells",
                silo=self._incarnation,
                activation=self._activation,
            )
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


@grain(kind="victim")
class Victim(WitnessedGrain):
    """A counter that kills its own silo, or the other one, at a named point of its move from one to the other.

    The points: `on_migrating`, `on_deactivate`, `on_dehydrate` at the source; `on_rehydrate`, `on_activate` and
    `first_turn` at the target, the former before and the latter after the commit; `giving_back` there, when it could
    not be activated; and once the source has its grain back `refused`, `fenced` and `given_back`.
    """

    point: str = soft_state(default="")
    pid: int = soft_state(default=0)
    incarnation: str = soft_state(default="")
    target: str = soft_state(default="")

    def __init__(self) -> None:
        super().__init__()
        self._tries = 0
        self._has_struck = False

    @read_only
    async def arm(self, point: str, pid: int, incarnation: str, target: str) -> None:
        """Name the point, and who dies there; not witnessed."""
        self.point, self.pid, self.incarnation, self.target = point, pid, incarnation, target

    async def increment(self, call: str) -> int:
        with self._turn(call):
            if self.silo == self.target:
                self._strike("first_turn")
            self.count += 1
        return self.count

    async def on_migrating(self, notice: MigrationNotice) -> None:
        self._strike("on_migrating")
        await super().on_migrating(notice)

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        self._strike("on_deactivate")
        await super().on_deactivate(reason)

    def on_dehydrate(self, context: DehydrateContext) -> None:
        self._strike("on_dehydrate")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        if self.silo != self.target:
            return  # it is built anew where it was
        self._strike("on_rehydrate")
        match self.point:
            case "refused":
                raise LookupError("not here")
            case "fenced":
                time.sleep(FENCED_AFTER_S)  # the whole silo: the source waits for its answer in vain
            case _:
                pass

    async def on_activate(self, reason: ActivationReason) -> None:
        match reason:
            case ActivationReason.MIGRATION:
                self._strike("on_activate")
                self._tries += 1
                if self._tries > 1:
                    self._strike("giving_back")
                if self.point in ("giving_back", "given_back"):
                    raise ConnectionError("no database here")
            case ActivationReason.MIGRATION_ABORTED:
                for point in ("refused", "fenced", "given_back"):
                    self._strike(point)
            case _:
                pass
        await super().on_activate(reason)

    def _strike(self, point: str) -> None:
        if point != self.point or self._has_struck:
            return
        self._has_struck = True
        self._witness(What.FAULT, because=f"killed at {point}")
        self._witness(What.SILO_LOST, silo=self.incarnation, because="killed")
        os.kill(self.pid, signal.SIGKILL)


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
