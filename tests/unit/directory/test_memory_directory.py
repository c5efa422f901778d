"""The fault hooks of the directory in memory."""

from __future__ import annotations

import asyncio

import pytest

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.contract import Registration
from silo.directory.directory_scripts import RUN_JUMP
from silo.directory.errors import DirectoryUnavailable
from silo.directory.memory_directory import DirectoryCall, DirectoryRows, MemoryDirectory

ADA = GrainId("player", "ada")
ONE = SiloAddress("10.0.0.1:7000", 1)


async def unavailable(call: DirectoryCall) -> None:
    raise DirectoryUnavailable(call)


async def test_a_failure_before_leaves_nothing_and_one_after_loses_the_answer() -> None:
    rows = DirectoryRows()
    asked = [Registration(ADA, ONE, "a1")]
    with pytest.raises(DirectoryUnavailable, match="register"):
        await MemoryDirectory(rows, before=unavailable).register(asked)
    assert rows.all() == []
    with pytest.raises(DirectoryUnavailable, match="register"):
        await MemoryDirectory(rows, after=unavailable).register(asked)
    (entry,) = rows.all()
    assert await MemoryDirectory(rows).register(asked) == [entry]


async def test_hooks_may_hold_a_call_back() -> None:
    gate = asyncio.Event()

    async def wait(call: DirectoryCall) -> None:
        await gate.wait()

    rows = DirectoryRows()
    late = asyncio.create_task(MemoryDirectory(rows, before=wait).register([Registration(ADA, ONE, "late")]))
    early = await MemoryDirectory(rows).register([Registration(ADA, ONE, "early")])
    gate.set()
    assert await late == early


async def test_without_hooks_calls_complete_without_giving_way() -> None:
    calls = MemoryDirectory().lookup([ADA])
    with pytest.raises(StopIteration) as ended:
        calls.send(None)
    assert ended.value.value == [None]


async def test_a_restart_jumps_the_epochs_as_redis_does() -> None:
    rows = DirectoryRows()
    directory = MemoryDirectory(rows)
    (entry,) = await directory.register([Registration(ADA, ONE, "a1")])
    assert entry is not None
    rows.restart()
    (moved,) = await directory.register([Registration(ADA, ONE, "a2", expected=entry)])
    assert moved is not None
    assert moved.epoch == entry.epoch + RUN_JUMP + 1
