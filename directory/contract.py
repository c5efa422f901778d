"""The contract of the grain directory: who serves a grain, changed by compare-and-set only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress


class Registration(msgspec.Struct, frozen=True):
    """One compare-and-set: make this activation the grain's, if the row is still as expected.

    Args:
        expected: the row that must stand there, to the letter; None where there must be none.
        floor: the highest epoch that the asker knows of for this grain; the new epoch is above it.
    """

    grain: GrainId
    silo: SiloAddress
    activation: str
    expected: Entry | None = None
    floor: int = 0


class GrainDirectory(Protocol):
    """Rows `grain -> (silo, activation, epoch)`. Every call takes many grains and answers in their order.

    A registration takes `max(bucket counter, expected epoch, floor) + 1` as its epoch. Losing is no error: the answer
    is whoever holds the row afterwards. All methods raise DirectoryUnavailable when the store cannot be asked; a write
    whose answer was lost is resolved by asking again with the same activation id.
    """

    async def open(self) -> None:
        """Prove that the store can carry the directory, so that mistakes show at start.

        Raises:
            DirectoryUnavailable: it could not be asked.
            InvalidSettings: it can be asked but will not do.
        """
        ...

    def part_of(self, grain: GrainId) -> str:
        """Names the part of the store that has the grain's row; what is asked of one part does not wait for another."""
        ...

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        """The rows as they stand; None where there is none."""
        ...

    async def register(self, registrations: Sequence[Registration]) -> list[Entry | None]:
        """Carry out each compare-and-set alone, and answer with whoever holds each row now.

        None only where a row was expected and none stands there.
        """
        ...

    async def unregister(self, entries: Sequence[Entry]) -> list[bool]:
        """Remove exactly these rows (silo, activation and epoch equal); False where another or none stood there."""
        ...

    def entries(self, silo: SiloAddress | None = None) -> AsyncIterator[list[Entry]]:
        """All rows in pages, or all rows that name one silo; not a snapshot."""
        ...

    async def close(self) -> None:
        """Let go of connections that this directory opened itself."""
        ...
