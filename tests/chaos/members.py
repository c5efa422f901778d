"""The members as the bench sees them: it tells the witness which incarnations were lost, whoever judged them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from silo.directory.addresses import SiloAddress
from silo.directory.errors import MembershipUnavailable
from silo.directory.members_reader import MembersReader
from silo.directory.membership import SiloStatus, View
from silo.directory.redis_connection import open_redis
from silo.testing.witness import Event, FileWitness, What

LOOK_EVERY_S: Final = 0.03


class MembersWatch:
    """Reads the table without pause, past every door.

    A silo is lost from the moment at which it was last seen alive: its death may have been committed right after that.
    One that said goodbye is not: what it had went elsewhere. Where a fault is near, nobody can tell the one end of a
    leaving silo from the other, and it counts as lost.

    Args:
        is_disturbed: whether a fault is near.
    """

    def __init__(self, redis: str, cluster: str, witness: FileWitness, is_disturbed: Callable[[], bool]) -> None:
        self._redis = open_redis(redis)
        self._reader = MembersReader(self._redis, cluster)
        self._witness = witness
        self._is_disturbed = is_disturbed
        self._seen_alive: dict[SiloAddress, tuple[float, SiloStatus]] = {}
        self._read_at = time.monotonic()
        self._known: set[SiloAddress] = set()
        self._told: set[SiloAddress] = set()
        self.forgetful = False
        """The store has been wiped: rows that are missing say nothing."""
        self._current: dict[str, SiloAddress] = {}
        self.view: View | None = None

    @property
    def lost(self) -> int:
        """Incarnations that were lost."""
        return len(self._told)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                asked_at = time.monotonic()
                try:
                    view = await self._reader.read()
                except MembershipUnavailable:
                    view = None  # it may be down: that is part of the play
                if view is not None:
                    self.on_view(view, asked_at)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await self._redis.aclose()

    def current(self, name: str) -> SiloAddress | None:
        """The incarnation of this name that was seen last."""
        return self._current.get(name)

    @property
    def alive(self) -> list[SiloAddress]:
        """The incarnations that were alive when the table was read last."""
        return list(self._seen_alive)

    def tell_lost(self, silo: SiloAddress, at: float, because: str) -> None:
        """Tell of a loss, once."""
        if silo not in self._told:
            self._told.add(silo)
            self._witness.take(Event(what=What.SILO_LOST, at=at, silo=str(silo), because=because))

    def on_view(self, view: View, asked_at: float) -> None:
        """What was read by a request sent at that time."""
        self.view = view
        alive = {row.silo: row for row in view.living()}
        for silo, (seen_at, status) in list(self._seen_alive.items()):
            if silo in alive or (self.forgetful and view.row(silo) is None):
                continue
            del self._seen_alive[silo]
            if status is not SiloStatus.LEAVING or self._is_disturbed():
                self.tell_lost(silo, seen_at, f"declared dead, last seen {status.name.lower()}")
        for row in view.table.rows:
            if row.status is SiloStatus.DEAD and row.silo not in self._known:
                self.tell_lost(row.silo, self._read_at, "declared dead before it was seen alive")
            self._known.add(row.silo)
        for silo, row in alive.items():
            self._seen_alive[silo] = (asked_at, row.status)
            self._current[row.info.name] = silo
        self._read_at = asked_at
