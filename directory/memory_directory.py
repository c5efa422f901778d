"""The grain directory in memory: the twin of the one on Redis, for simulation and unit tests.

Several silos of one simulated cluster share one `DirectoryRows`, each through a `MemoryDirectory` of its own, so that
faults can be given to each silo's way to the directory apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Literal

from silo.directory.addresses import EPOCH_MAX, Entry, GrainId, SiloAddress
from silo.directory.contract import Registration
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, RUN_JUMP, bucket_of, check_registration, epoch_before
from silo.directory.errors import DirectoryUnavailable

DirectoryCall = Literal["lookup", "register", "unregister", "entries"]
Hook = Callable[[DirectoryCall], Awaitable[None]]
"""Awaited before a call is carried out, or after it but before it is answered. It may wait, and it may raise
DirectoryUnavailable: before, and nothing has changed; after, and the answer is lost."""

PAGE_ENTRIES: Final = 250


class DirectoryRows:
    """The rows and the epoch counters: what Redis holds for the other implementation."""

    def __init__(self) -> None:
        self._rows: dict[GrainId, Entry] = {}
        self._counters = [0] * DIRECTORY_BUCKETS

    def look_up(self, grain: GrainId) -> Entry | None:
        return self._rows.get(grain)

    def register(self, asked: Registration) -> Entry | None:
        row = self._rows.get(asked.grain)
        if row != asked.expected:
            return row
        bucket = bucket_of(str(asked.grain))
        epoch = max(self._counters[bucket], epoch_before(asked)) + 1
        if epoch >= EPOCH_MAX:
            raise DirectoryUnavailable(f"the epochs of bucket {bucket} are used up")
        self._counters[bucket] = epoch
        self._rows[asked.grain] = row = Entry(asked.grain, asked.silo, asked.activation, epoch)
        return row

    def unregister(self, entry: Entry) -> bool:
        if self._rows.get(entry.grain) != entry:
            return False
        del self._rows[entry.grain]
        return True

    def all(self) -> list[Entry]:
        return list(self._rows.values())

    def restart(self) -> None:
        """What a new run id of Redis does: every counter jumps, since increments may have been lost before it."""
        self._counters = [counter + RUN_JUMP for counter in self._counters]


class MemoryDirectory:
    """A GrainDirectory without a server; contract.py says what its methods promise.

    Args:
        rows: what it reads and writes; its own if not given.
        before, after: hooks for faults, see `Hook`.
    """

    def __init__(
        self, rows: DirectoryRows | None = None, *, before: Hook | None = None, after: Hook | None = None
    ) -> None:
        self.rows = DirectoryRows() if rows is None else rows
        self._before = before
        self._after = after

    async def open(self) -> None:
        """Memory will do."""

    def part_of(self, grain: GrainId) -> str:
        return ""  # there is but one

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        await self._run(self._before, "lookup")
        answers = [self.rows.look_up(grain) for grain in grains]
        await self._run(self._after, "lookup")
        return answers

    async def register(self, registrations: Sequence[Registration]) -> list[Entry | None]:
        for wanted in registrations:
            check_registration(wanted)
        await self._run(self._before, "register")
        answers = [self.rows.register(wanted) for wanted in registrations]
        await self._run(self._after, "register")
        return answers

    async def unregister(self, entries: Sequence[Entry]) -> list[bool]:
        await self._run(self._before, "unregister")
        answers = [self.rows.unregister(entry) for entry in entries]
        await self._run(self._after, "unregister")
        return answers

    async def entries(self, silo: SiloAddress | None = None) -> AsyncIterator[list[Entry]]:
        await self._run(self._before, "entries")
        rows = [entry for entry in self.rows.all() if silo is None or entry.silo == silo]
        for start in range(0, len(rows), PAGE_ENTRIES):
            await self._run(self._after, "entries")
            yield rows[start : start + PAGE_ENTRIES]

    async def close(self) -> None:
        """There is nothing to let go of."""

    @staticmethod
    async def _run(hook: Hook | None, call: DirectoryCall) -> None:
        if hook is not None:
            await hook(call)
