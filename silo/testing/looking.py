"""Looking into a cluster of this process: where a grain is, what it does, and waiting until it is so."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from silo.activation.activation import Activation, State
from silo.directory.addresses import Entry
from silo.host import Silo
from silo.reference import grain_id

LIMIT_S = 20.0
"""How long a test waits for something that must happen, in seconds."""
LOOK_EVERY_S = 0.005
"""How often it looks for what tells nobody when it changes."""


class Looking(ABC):
    """What a test may ask a cluster whose silos are objects of its own process."""

    @abstractmethod
    def hosts(self) -> Mapping[str, Silo]:
        """The silos that run, by name."""

    async def seen(self, condition: Callable[[], object], within_s: float = LIMIT_S) -> None:
        """Wait until it is so, where nobody tells when that is. Raises TimeoutError after `within_s`."""
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - nothing sets an event for the test
                await asyncio.sleep(LOOK_EVERY_S)

    def live(self, grain: Any) -> list[Activation]:
        """The activations of a grain that are open or draining; more than one would be a fault of the runtime."""
        states = (State.OPEN, State.DRAINING)
        return [
            activation
            for silo in self.hosts().values()
            if (activation := silo.runtime.catalog.get(grain_id(grain))) is not None and activation.state in states
        ]

    def activation(self, grain: Any) -> Activation:
        """The one activation of a grain that is open or draining; fails where there are none or two."""
        found = self.live(grain)
        if len(found) != 1:
            raise AssertionError(f"{grain!r} has {len(found)} live activations: {found}")
        return found[0]

    def home(self, grain: Any) -> str:
        """The name of the silo where the grain is."""
        return self.activation(grain).silo_name

    async def arrived(self, grain: Any, name: str) -> None:
        """Wait until the grain is open at this silo, and nowhere else."""

        def homes() -> list[str]:
            found = [(each, silo.runtime.catalog.get(grain_id(grain))) for each, silo in self.hosts().items()]
            return [each for each, activation in found if activation is not None and activation.state is State.OPEN]

        await self.seen(lambda: homes() == [name])

    def is_active(self, grain: Any) -> bool:
        """Whether any silo has an activation of it, in whatever state."""
        return any(silo.runtime.catalog.get(grain_id(grain)) is not None for silo in self.hosts().values())

    def elsewhere(self, grain: Any) -> str:
        """The name of some silo where the grain is not."""
        return next(name for name in self.hosts() if name != self.home(grain))

    async def entry(self, grain: Any) -> Entry | None:
        """The grain's row in the directory."""
        (entry,) = await next(iter(self.hosts().values())).runtime.directory.lookup([grain_id(grain)])
        return entry

    def waiting(self, grain: Any) -> int:
        """How many calls stand in the grain's queue."""
        return self.activation(grain).turns.waiting_count

    async def queued(self, grain: Any, calls: int) -> None:
        """Wait until so many calls stand in the grain's queue."""
        await self.seen(lambda: self.waiting(grain) >= calls)

    async def draining(self, grain: Any) -> None:
        """Wait until the grain holds new calls back."""
        await self.seen(lambda: self.activation(grain).state is State.DRAINING)
