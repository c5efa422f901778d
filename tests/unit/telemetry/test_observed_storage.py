"""What a silo tells of its storage: how often it was asked, what came of that, and how long it took."""

from __future__ import annotations

import pytest

from silo.directory.addresses import GrainId
from silo.directory.errors import StorageUnavailable
from silo.persistence.contract import Change, Claim, Conflicting, StateBody, StoredState, Superseded, Written
from silo.persistence.memory_storage import MemoryStorage, StorageCall
from tests.support.telemetry import Observed

OLD, NEW = (Claim(GrainId("player", "ada"), epoch, f"a{epoch}") for epoch in (1, 2))
BODY = StateBody(1, 1, b"x")


async def test_reads_writes_and_clears_are_counted_by_kind_and_by_what_came_of_them() -> None:
    observed = Observed()
    down = [False]

    async def fail(call: StorageCall) -> None:
        if down[0]:
            raise StorageUnavailable(f"no {call} now")

    storage = observed.telemetry.observed_storage(MemoryStorage(before=fail))
    await storage.open()
    assert await storage.read(NEW, ["profile"]) == [StoredState()]
    assert await storage.write(NEW, Change("profile", "", False, "e1", BODY)) == Written()
    assert await storage.write(NEW, Change("profile", "e0", True, "e2", BODY)) == Conflicting("e1")
    assert await storage.write(NEW, Change("profile", "e1", True, "e2", None)) == Written()
    assert await storage.read(OLD, ["profile"]) == Superseded(2)
    down[0] = True
    with pytest.raises(StorageUnavailable):
        await storage.read(NEW, ["profile"])
    await storage.close()

    points = observed.metrics()["silo.storage.duration"]
    assert {(labels["op"], labels["result"], labels["type"]): count for labels, count in points} == {
        ("read", "ok", "player"): 1,
        ("read", "conflict", "player"): 1,
        ("read", "error", "player"): 1,
        ("write", "ok", "player"): 1,
        ("write", "conflict", "player"): 1,
        ("clear", "ok", "player"): 1,
    }
