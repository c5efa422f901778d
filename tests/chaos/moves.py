"""The steady stream of migrations: one grain after the other, each to some silo, whatever else befalls the cluster."""

from __future__ import annotations

import asyncio
import random
from collections import Counter as Tally
from collections.abc import Sequence
from typing import Final

from silo.client import Client
from silo.directory.addresses import GrainId
from silo.directory.errors import SiloError

MOVES_OPEN_MAX: Final = 100
"""Beyond it the stream is late instead."""


class MoveStream:
    """Moves grains at a steady rate.

    Args:
        rate: moves per second.
    """

    def __init__(
        self, client: Client, *, grains: Sequence[GrainId], silos: Sequence[str], rate: float, rng: random.Random
    ) -> None:
        self._client = client
        self._grains = grains
        self._silos = silos
        self._rate = rate
        self._rng = rng
        self._slots = asyncio.Semaphore(MOVES_OPEN_MAX)
        self.outcomes: Tally[str] = Tally()
        """How moves have ended, by status, or by error where the order could not be given."""
        self.open = 0
        """Moves whose outcome is not known yet."""

    async def run(self) -> None:
        """Move until cancelled; then wait for the outcomes."""
        loop, due = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            try:
                while True:
                    due = max(due + 1 / self._rate, loop.time() - 1.0)
                    await asyncio.sleep(due - loop.time())
                    await self._slots.acquire()
                    grain, to = self._rng.choice(self._grains), self._rng.choice(self._silos)
                    group.create_task(self._move(grain, to))
            except asyncio.CancelledError:
                pass  # the wish to stop: what is under way comes to its end

    async def _move(self, grain: GrainId, to: str) -> None:
        self.open += 1
        try:
            outcome = await self._client.migrate(grain, to=to)
            self.outcomes[str(outcome.status)] += 1
        except SiloError as error:
            self.outcomes[type(error).__name__] += 1
        finally:
            self.open -= 1
            self._slots.release()
