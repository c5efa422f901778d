"""Everything here is right, and both type checkers have to agree."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import assert_type

from silo.activation.timers import GrainTimer
from silo.directory.addresses import GrainId
from silo.grain import Grain, always_interleave, current_grain, grain, one_way, read_only, soft_state, timeout
from silo.kinds import GrainKind, kind_of
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.outcome import MigrationOutcome
from silo.migration.participants import DehydrateContext, Participant, RehydrateContext
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.reference import grain_id, with_hint, with_timeout


@dataclass
class Board:
    """A value of the application."""

    cells: dict[str, int] = field(default_factory=dict[str, int])


class Scores:
    """A participant, without any base."""

    name = "scores"

    def __init__(self) -> None:
        self.best = 0

    def on_dehydrate(self, context: DehydrateContext) -> None:
        context["best"] = self.best

    def on_rehydrate(self, context: RehydrateContext) -> None:
        self.best = context["best"]


@grain
class Lobby:
    """A grain without the base."""

    async def open(self) -> str:
        return current_grain().key


@grain(kind="room", reentrant="call_chain", collect_after=timedelta(minutes=5), on_busy="interrupt", drain_timeout=2)
class Room(Grain):
    """A grain with everything."""

    taken: set[str] = soft_state(default_factory=set)
    recent: deque[int] = soft_state(default_factory=deque)
    scores: dict[str, int] = soft_state(default_factory=dict)
    board: Board = soft_state(default_factory=Board)
    topic: str = soft_state(default="", schema=2, upgrade=lambda schema, value: str(value))
    owner: str | None = soft_state(default=None)
    stored: Persistent[Board] = persistent(Board)
    by_annotation: Persistent[Board] = persistent()
    names: Persistent[set[str]] = persistent(set)
    visits: Persistent[int] = persistent(int, name="visited")
    maybe: Persistent[Board | None] = persistent(lambda: None)

    def __init__(self) -> None:
        self.best = Scores()
        self.add_participant(self.best)

    async def on_activate(self, reason: ActivationReason) -> None:
        assert_type(self.key, str)
        assert_type(self.id, GrainId)

    async def on_deactivate(self, reason: DeactivationReason) -> None: ...

    async def on_migrating(self, notice: MigrationNotice) -> None: ...

    async def enter(self, player: str, *, loud: bool = False) -> int:
        assert_type(self.taken, set[str])
        assert_type(self.topic, str)
        assert_type(self.owner, str | None)
        assert_type(self.stored.value, Board)
        assert_type(self.maybe.value, Board | None)
        assert_type(self.stored.exists, bool)
        assert_type(self.stored.etag, str | None)
        self.names.value.add(player)
        self.visits.value += 1
        self.maybe.value = Board()
        await self.visits.write()
        await self.names.read()
        await self.stored.clear()
        other = self.grain(Room, "hall")
        assert_type(other, Room)
        self.migrate(to="silo-2", reason="closer to its players", on_busy="wait")
        assert_type(self.create_task(other.players()), asyncio.Task[list[str]])
        timer = self.register_timer(self._tick, 1.0, 2.5)
        assert_type(timer, GrainTimer)
        timer.cancel()
        with self.block_migration("a transaction is open"):
            pass
        self.deactivate()
        return len(await other.players())

    async def _tick(self) -> None: ...

    async def leave_for(self, silo: str) -> MigrationOutcome:
        return await self.migrate(to=silo)

    @read_only
    async def players(self) -> list[str]:
        return sorted(self.taken)

    @one_way
    async def wave(self) -> None: ...

    @always_interleave
    @timeout(2.5)
    async def ping(self) -> float:
        return 1.0

    @timeout(None)
    async def endless(self) -> None: ...


async def use(room: Room) -> None:
    assert_type(await room.enter("ada", loud=True), int)
    assert_type(await room.players(), list[str])
    assert_type(await with_timeout(room, 1.5).ping(), float)
    assert_type(with_hint(room, "silo-1"), Room)
    assert_type(grain_id(room), GrainId)
    assert_type(kind_of(Room), GrainKind)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(room.enter("bob"))
    assert_type(task.result(), int)


participant: Participant = Scores()
