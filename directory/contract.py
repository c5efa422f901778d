"""The contract of the grain directory: who serves a grain, changed by compare-and-set only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress


class Registration(msgspec.Struct, frozen=True):
    """One compare-and-set: make this activation the grain's, if the row is still as expected.

    Args:
        expected: the row that must stand there, to the letter; None where there must be none.
        floor: the highest epoch that the asker knows of for this grain; the new epoch is above it.
        life: the life of the grain's bucket in which it counts; empty for whichever there is.
    """

    grain: GrainId
    silo: SiloAddress
    activation: str
    expected: Entry | None = None
    floor: int = 0
    life: str = ""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one silo knows of one bucket: entries that were written there and that it has not seen replaced.

    Each is written as it is, epoch and all, where no row stands or one of a lower epoch. But a life that was settled
    without the silo is put in doubt by what it brings, and nothing is written: another begins. So what was sent by a
    silo that is dead by then replaces nothing, and one that lives claims once more.

    Args:
        life: the life in which it counts; empty for whichever there is, and to begin one where there is none.
        over: a life that has lost rows as far as the silo knows; where it still goes on, another begins.
        new_life: how the name of a life that begins, begins; the store ends it as it has ended none before, since a
            claim may be carried out twice, and a life must not come again.
        whole: whether with these the silo has said all that it knows.
        sweeps: whether rows may stand there that name the silo and are over: the store may have come back as it was
            earlier.
        floor: the highest epoch that the silo knows the bucket to have given: later ones are above it.
    """

    bucket: int
    silo: SiloAddress
    entries: tuple[Entry, ...] = ()
    life: str = ""
    over: str = ""
    new_life: str = ""
    whole: bool = True
    sweeps: bool = False
    floor: int = 0


class Inquiry(msgspec.Struct, frozen=True, gc=False):
    """A question after the life of one bucket.

    Args:
        life: the life that is settled if all of these members have said in it what they know.
        members: all that live; none, to settle nothing.
    """

    bucket: int
    life: str = ""
    members: tuple[SiloAddress, ...] = ()


class Standing(msgspec.Struct, frozen=True, gc=False):
    """How a bucket stands.

    Args:
        life: its life; empty where there is none, or the one that there was belongs to another run of the store.
        is_settled: whether every silo that lived has said in it what it knows.
        entries: for each entry of the claim, the row that stands now; empty where the claim was for another life, or
            has begun one because it was not heard before the last was settled.
        strays: other rows that name the silo, where the claim sweeps; STRAYS_MAX at most.
    """

    life: str
    is_settled: bool
    entries: tuple[Entry | None, ...] = ()
    strays: tuple[Entry, ...] = ()


STRAYS_MAX: Final = 500
"""Rows that one claim shows of those that name its silo and that it did not claim."""


class GrainDirectory(Protocol):
    """Rows `grain -> (silo, activation, epoch)`. Every call takes many grains and answers in their order.

    A registration takes `max(bucket counter, expected epoch, floor) + 1` as its epoch. Losing is no error: the answer
    is whoever holds the row afterwards. All methods raise DirectoryUnavailable when the store cannot be asked; a write
    whose answer was lost is resolved by asking again with the same activation id.

    The rows lie in buckets, and each bucket has a *life*: a name that is lost with its rows, and that counts in one run
    of the store only. A registration names the life in which it counts. So a bucket that was wiped, or came back with
    the store as it was earlier, takes none until a life in it is settled: until every living silo has claimed there
    what it serves.
    """

    async def open(self) -> None:
        """Prove that the store can carry the directory, so that mistakes show at start.

        Raises:
            DirectoryUnavailable: it could not be asked.
            InvalidSettings: it can be asked but will not do.
        """
        ...

    def part_of(self, bucket: int) -> str:
        """Names the part of the store that has this bucket; what is asked of one part does not wait for another."""
        ...

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        """The rows as they stand; None where there is none."""
        ...

    async def register(self, registrations: Sequence[Registration]) -> list[Entry | None]:
        """Carry out each compare-and-set alone, and answer with whoever holds each row now.

        None only where a row was expected and none stands there.

        Raises:
            DirectoryLifeOver: some name a life that is over; all others were carried out.
        """
        ...

    async def claim(self, claims: Sequence[Claim]) -> list[Standing | None]:
        """Write again what was lost, each claim in one step; what stands in each bucket after that.

        None for a bucket that could not be asked, which may have been claimed all the same; raises where none could.
        """
        ...

    async def inquire(self, inquiries: Sequence[Inquiry]) -> list[Standing | None]:
        """The lives of buckets, and whether they are settled, now that these members live; as for `claim`."""
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
