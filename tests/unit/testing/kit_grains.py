"""Grains as users write them: nothing in them knows that it is tested."""

from __future__ import annotations

import asyncio

from silo.grain import Grain, grain, one_way, read_only, soft_state
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice


@grain(kind="room")
class Room(Grain):
    inside: list[str] = soft_state(default_factory=list)

    async def enter(self, player: str, takes_s: float = 0.0) -> int:
        await asyncio.sleep(takes_s)
        self.inside.append(player)
        return len(self.inside)

    async def fail(self) -> None:
        raise ValueError("the room says no")

    @one_way
    async def greet(self, player: str) -> None:
        self.inside.append(f"hello {player}")

    @read_only
    async def players(self) -> list[str]:
        return self.inside


@grain(kind="lodge")
class Lodge(Room):
    """A room with every hook there is."""

    async def on_activate(self, reason: ActivationReason) -> None:
        """Nothing to do."""

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        """Nothing to do."""

    async def on_migrating(self, notice: MigrationNotice) -> None:
        """Nothing to do."""


@grain(kind="tally")
class Tally(Grain):
    """Forgets on a move how often it was called."""

    total: int = soft_state(default=0)

    def __init__(self) -> None:
        self.count = 0
        self.lock = asyncio.Lock()

    async def add(self, number: int) -> int:
        async with self.lock:
            self.total += number
            self.count += 1
            return self.total

    async def counted(self) -> int:
        return self.count


@grain(kind="postman")
class Postman(Grain):
    """Calls rooms in its turns."""

    async def deliver(self, to: str, names: list[str]) -> int:
        room = self.grain(Room, to)
        inside = 0
        for name in names:
            inside = await room.enter(name)
        return inside
