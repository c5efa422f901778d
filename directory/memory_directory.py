"""The grain directory in memory: the twin of the one on Redis, for simulation and unit tests.

Several silos of one simulated cluster share one `DirectoryRows`, each through a `MemoryDirectory` of its own, so that
faults can be given to each silo's way to the directory apart.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from silo.directory.addresses import EPOCH_MAX, Entry, GrainId, SiloAddress
from silo.directory.contract import STRAYS_MAX, Claim, Inquiry, Registration, Standing
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, RUN_JUMP, bucket_of, check_registration, epoch_before
from silo.directory.errors import DirectoryLifeOver, DirectoryUnavailable

DirectoryCall = Literal["lookup", "register", "unregister", "claim", "inquire", "entries"]
Hook = Callable[[DirectoryCall], Awaitable[None]]
"""Awaited before a call is carried out, or after it but before it is answered. It may wait, and it may raise
DirectoryUnavailable: before, and nothing has changed; after, and the answer is lost."""

PAGE_ENTRIES: Final = 250


@dataclass(slots=True)
class _Head:
    """What a bucket holds beside its rows."""

    counter: int = 0
    life: str = ""
    is_settled: bool = False
    said: set[SiloAddress] = field(default_factory=set[SiloAddress])
    """Who has said in this life what it knows."""


class DirectoryRows:
    """The rows, the epoch counters and the lives: what Redis holds for the other implementation."""

    def __init__(self) -> None:
        self._rows: dict[GrainId, Entry] = {}
        self._heads = [_Head() for _ in range(DIRECTORY_BUCKETS)]
        self._begun = itertools.count(1)
        """Numbers the lives, whatever is lost: the clock, as it were."""

    def look_up(self, grain: GrainId) -> Entry | None:
        return self._rows.get(grain)

    def register(self, asked: Registration) -> Entry | None:
        """Carry out one compare-and-set; raises DirectoryLifeOver."""
        bucket = bucket_of(str(asked.grain))
        head = self._heads[bucket]
        if asked.life not in ("", head.life):
            raise DirectoryLifeOver([bucket])
        row = self._rows.get(asked.grain)
        if row != asked.expected:
            return row
        epoch = max(head.counter, epoch_before(asked)) + 1
        if epoch >= EPOCH_MAX:
            raise DirectoryUnavailable(f"the epochs of bucket {bucket} are used up")
        head.counter = epoch
        self._rows[asked.grain] = row = Entry(asked.grain, asked.silo, asked.activation, epoch)
        return row

    def unregister(self, entry: Entry) -> bool:
        if self._rows.get(entry.grain) != entry:
            return False
        del self._rows[entry.grain]
        return True

    def claim(self, claim: Claim) -> Standing:
        head, entries, rows = self._heads[claim.bucket], claim.entries, self._rows
        if claim.life and claim.life != head.life:
            return Standing(head.life, head.is_settled)
        if not head.life or claim.over == head.life:
            self._begin_life(head, claim)
        if claim.floor > head.counter:
            head.counter = claim.floor
        if entries:  # most buckets have none
            if head.is_settled and claim.silo not in head.said and any(map(self._is_news, entries)):
                self._begin_life(head, claim)  # it was settled without this silo: what the others know is in doubt
                return Standing(head.life, head.is_settled)
            for entry in filter(self._is_news, entries):
                rows[entry.grain] = entry
                head.counter = max(head.counter, entry.epoch)
        if claim.whole:
            head.said.add(claim.silo)
        stand = tuple([rows.get(entry.grain) for entry in entries]) if entries else ()
        return Standing(head.life, head.is_settled, stand, self._strays(claim) if claim.sweeps else ())

    def _is_news(self, entry: Entry) -> bool:
        row = self._rows.get(entry.grain)
        return row is None or row.epoch < entry.epoch

    def _strays(self, claim: Claim) -> tuple[Entry, ...]:
        of_silo = [row for row in self._rows.values() if row.silo == claim.silo and row not in claim.entries]
        strays = [row for row in of_silo if bucket_of(str(row.grain)) == claim.bucket]
        return tuple(strays[:STRAYS_MAX])

    def _begin_life(self, head: _Head, claim: Claim) -> None:
        head.life, head.is_settled = f"{claim.new_life}.{next(self._begun)}", False
        head.said.clear()

    def inquire(self, inquiry: Inquiry) -> Standing:
        head = self._heads[inquiry.bucket]
        if inquiry.members and head.life and inquiry.life == head.life and head.said.issuperset(inquiry.members):
            head.is_settled = True
        return Standing(head.life, head.is_settled)

    def all(self) -> list[Entry]:
        return list(self._rows.values())

    def restart(self) -> None:
        """What a new run id of Redis does: counters jump, since increments may have been lost, and lives are over."""
        for head in self._heads:
            head.counter += RUN_JUMP if head.counter else 0
            head.life, head.is_settled = "", False

    def lose(self) -> None:
        """Forget everything, as a store does that was flushed or came back empty."""
        self._rows.clear()
        self._heads = [_Head() for _ in range(DIRECTORY_BUCKETS)]

    def copy(self) -> DirectoryRows:
        """All of it as it is now: for `set_back`."""
        kept = DirectoryRows()
        kept._rows = dict(self._rows)
        kept._heads = [replace(head, said=set(head.said)) for head in self._heads]
        return kept

    def set_back(self, kept: DirectoryRows) -> None:
        """Be again as it was, as a store that was given an earlier copy of its data."""
        again = kept.copy()
        self._rows, self._heads = again._rows, again._heads


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

    def part_of(self, bucket: int) -> str:
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
        answers: list[Entry | None] = []
        over: set[int] = set()
        for wanted in registrations:
            try:
                answers.append(self.rows.register(wanted))
            except DirectoryLifeOver as error:
                over |= error.buckets
        await self._run(self._after, "register")
        if over:
            raise DirectoryLifeOver(over)
        return answers

    async def claim(self, claims: Sequence[Claim]) -> list[Standing | None]:
        await self._run(self._before, "claim")
        standings: list[Standing | None] = [self.rows.claim(claim) for claim in claims]
        await self._run(self._after, "claim")
        return standings

    async def inquire(self, inquiries: Sequence[Inquiry]) -> list[Standing | None]:
        await self._run(self._before, "inquire")
        standings: list[Standing | None] = [self.rows.inquire(inquiry) for inquiry in inquiries]
        await self._run(self._after, "inquire")
        return standings

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
