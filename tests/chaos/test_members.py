"""When the bench takes a silo for lost: never later than its death was committed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.membership import SiloInfo, SiloRow, SiloStatus, Table, View
from silo.testing.witness import FileWitness, What, read_events
from tests.chaos.members import MembersWatch

A, B = SiloAddress("127.0.0.1:1", 1), SiloAddress("127.0.0.1:2", 2)


class Watched:
    """A watch, and what it has told of."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "witness.jsonl"
        self.is_disturbed = True
        self.witness = FileWitness(self.file)
        self.watch = MembersWatch("redis://127.0.0.1:1", "c", self.witness, lambda: self.is_disturbed)

    def sees(self, at: float, **rows: SiloStatus) -> None:
        """It reads a table with these silos in it."""
        addresses = {"a": A, "b": B}
        table = [SiloRow(addresses[name], SiloInfo(name), status, 1, 1, 1) for name, status in rows.items()]
        self.watch.on_view(View(Table("run", int(at), tuple(table))), at)

    @property
    def lost(self) -> dict[str, float]:
        """The silos that it has told to be lost, and since when."""
        return {event.silo: event.at for event in read_events(self.file) if event.what is What.SILO_LOST}


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncGenerator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.witness.close()


async def test_a_silo_is_lost_from_when_it_was_last_seen_alive(watched: Watched) -> None:
    watched.sees(1.0, a=SiloStatus.ACTIVE, b=SiloStatus.ACTIVE)
    watched.sees(2.0, a=SiloStatus.ACTIVE, b=SiloStatus.ACTIVE)
    watched.sees(3.0, a=SiloStatus.DEAD, b=SiloStatus.ACTIVE)
    watched.sees(4.0, a=SiloStatus.DEAD, b=SiloStatus.ACTIVE)
    assert watched.lost == {str(A): 2.0}
    assert watched.watch.alive == [B]


async def test_a_row_that_has_been_swept_away_was_dead_unless_the_store_was_wiped(watched: Watched) -> None:
    watched.sees(1.0, a=SiloStatus.ACTIVE, b=SiloStatus.ACTIVE)
    watched.watch.forgetful = True
    watched.sees(2.0, b=SiloStatus.ACTIVE)
    assert watched.lost == {}
    watched.watch.forgetful = False
    watched.sees(3.0, b=SiloStatus.ACTIVE)
    assert watched.lost == {str(A): 1.0}


async def test_a_silo_that_says_goodbye_is_not_lost_and_where_a_fault_is_near_it_may_be(watched: Watched) -> None:
    watched.is_disturbed = False
    watched.sees(1.0, a=SiloStatus.LEAVING, b=SiloStatus.LEAVING)
    watched.sees(2.0, a=SiloStatus.DEAD, b=SiloStatus.LEAVING)
    assert watched.lost == {}
    watched.is_disturbed = True
    watched.sees(3.0, a=SiloStatus.DEAD, b=SiloStatus.DEAD)
    assert watched.lost == {str(B): 2.0}


async def test_a_silo_that_died_unseen_is_lost_from_the_read_before(watched: Watched) -> None:
    watched.sees(1.0, a=SiloStatus.ACTIVE)
    watched.sees(2.0, a=SiloStatus.ACTIVE, b=SiloStatus.DEAD)
    assert watched.lost == {str(B): 1.0}


async def test_a_loss_is_told_once(watched: Watched) -> None:
    watched.sees(1.0, a=SiloStatus.ACTIVE)
    watched.watch.tell_lost(A, 1.5, "killed")
    watched.sees(2.0, a=SiloStatus.DEAD)
    assert watched.lost == {str(A): 1.5}
    assert watched.watch.lost == 1
