"""Calls that take minutes: they last as long as the silo that runs them, whatever happens around them. R-449, R-454."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from silo.directory.errors import SiloUnavailable
from silo.grain import Grain, grain, timeout
from silo.migration.outcome import MoveStatus
from silo.reference import with_hint
from silo.settings import MigrationSettings
from tests.cluster.clusters import LEASE, Cluster, MemoryStand
from tests.cluster.mortal import MortalCluster, simulated
from tests.cluster.stage import Stage, say

pytestmark = pytest.mark.in_memory

TEN_MINUTES_S = 600.0
PATIENT = MigrationSettings(drain_timeout_s=1200.0, shutdown_timeout_s=1600.0)
"""Of a cluster whose operators let it finish what it does before they stop a silo."""


async def ended(call: Awaitable[object]) -> object:
    """What the call answers, or the error that it ends with."""
    return (await asyncio.gather(call, return_exceptions=True))[0]


@grain(kind="report")
class Report(Grain):
    """Takes its time."""

    @timeout(None)
    async def write(self, seconds: float) -> str:
        say(f"{self.key} begun")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            say(f"{self.key} cancelled")
            raise
        return f"{self.key} written on {self.silo}"

    async def touch(self) -> str:
        return self.silo


@grain(kind="editor")
class Editor(Grain):
    """Waits for reports."""

    @timeout(None)
    async def order(self, report: str, seconds: float) -> str:
        return f"{self.silo} read: " + await self.grain(Report, report).write(seconds)

    async def touch(self) -> str:
        return self.silo


@grain(kind="task")
class Task(Grain):
    """One node of a tree of calls: a minute's work of its own, then it waits for its children."""

    @timeout(None)
    async def work(self, depth: int) -> int:
        say(f"works {self.key}")
        await asyncio.sleep(60.0)
        if depth == 0:
            return 1
        children = (self.grain(Task, f"{self.key}{side}").work(depth - 1) for side in "lr")
        return 1 + sum(await asyncio.gather(*children))


async def test_a_call_without_a_deadline_lasts_ten_minutes_though_connections_break_all_the_time(
    cluster: Cluster, stage: Stage
) -> None:
    stand = cluster.stand
    assert isinstance(stand, MemoryStand)
    await cluster.start("a", "b", kinds=(Report, Editor))
    client = await cluster.client()
    editor = with_hint(client.grain(Editor, "e"), "a")
    await editor.touch()
    await with_hint(client.grain(Report, "r"), "b").touch()
    loop = asyncio.get_running_loop()
    began = loop.time()
    calling = asyncio.create_task(editor.order("r", TEN_MINUTES_S))
    await stage.heard("r begun")
    broken = 0
    while not calling.done():
        await asyncio.sleep(7.0)
        broken += stand.network.reset("a")
    assert await calling == "a read: r written on b"
    assert TEN_MINUTES_S <= loop.time() - began < TEN_MINUTES_S + 10.0
    assert broken > 80
    assert stage.lines == ["r begun"]


async def test_R449_neither_moving_nor_failing_to_move_a_caller_touches_what_it_has_waited_for_for_minutes(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", "c", kinds=(Report, Editor))
    client = await cluster.client()
    editor, report = client.grain(Editor, "e"), client.grain(Report, "r")
    await with_hint(editor, "a").touch()
    await with_hint(report, "b").touch()
    calling = asyncio.create_task(editor.order("r", TEN_MINUTES_S))
    await stage.heard("r begun")
    await asyncio.sleep(60.0)
    gave_up = await client.migrate(editor, to="c")  # after the usual minute, in which the call goes on
    assert gave_up.status is MoveStatus.ABORTED
    assert not calling.done()
    assert await calling == "a read: r written on b"
    assert (await client.migrate(editor, to="c")).moved
    assert await editor.touch() == "c"
    assert stage.lines == ["r begun"]


async def test_R449_a_caller_that_is_to_move_after_its_ten_minute_call_does_so_and_has_the_answer(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", "c", kinds=(Report, Editor), migration=PATIENT)
    a = cluster.silos["a"]
    client = await cluster.client()
    editor, report = client.grain(Editor, "e"), client.grain(Report, "r")
    await with_hint(editor, "a").touch()
    await with_hint(report, "b").touch()
    calling = asyncio.create_task(editor.order("r", TEN_MINUTES_S))
    await stage.heard("r begun")
    moving = asyncio.create_task(a.migrate(editor, to="c"))
    await asyncio.sleep(TEN_MINUTES_S / 2)
    assert not calling.done()
    assert not moving.done()
    assert await calling == "a read: r written on b"
    assert (await moving).moved
    assert await editor.touch() == "c"
    assert stage.lines == ["r begun"]


async def test_R449_R454_a_ten_minute_call_outlives_the_replacement_of_every_silo_around_it(
    cluster: Cluster, stage: Stage
) -> None:
    """Each silo that is asked to stop waits for what runs on it, its gateway for what it has to answer."""
    await cluster.start("a", "b", "c", kinds=(Report, Editor), migration=PATIENT)
    client = await cluster.client()
    editor, report = client.grain(Editor, "e"), client.grain(Report, "r")
    await with_hint(editor, "a").touch()
    await with_hint(report, "b").touch()
    calling = asyncio.create_task(editor.order("r", TEN_MINUTES_S))
    await stage.heard("r begun")
    await cluster.start("d", "e", "f", kinds=(Report, Editor), migration=PATIENT)
    stopping = [asyncio.create_task(cluster.stop(name)) for name in ("a", "b", "c")]
    await asyncio.sleep(60.0)
    others = [client.grain(Report, f"other {number}") for number in range(20)]
    assert {await other.touch() for other in others} == {"d", "e", "f"}  # new calls go round those that leave
    assert await calling == "a read: r written on b"
    await asyncio.gather(*stopping)
    assert await editor.touch() in ("d", "e", "f")
    assert stage.lines == ["r begun"]


async def test_R454_a_tree_of_calls_of_minutes_goes_through_a_rolling_restart_without_a_restarted_node(
    cluster: Cluster, stage: Stage
) -> None:
    """Six levels, a minute of work for each node, parents waiting: every silo is replaced meanwhile."""
    await cluster.start("a", "b", "c", kinds=(Task,), migration=PATIENT)
    client = await cluster.client()
    depth = 5
    nodes = 2 ** (depth + 1) - 1
    began = asyncio.get_running_loop().time()
    working = asyncio.create_task(client.grain(Task, "t").work(depth))
    await asyncio.sleep(70.0)
    assert len(stage.lines) == 3  # the root and its children
    stopping: list[asyncio.Task[None]] = []
    for old, new in (("a", "d"), ("b", "e"), ("c", "f")):
        await cluster.start(new, kinds=(Task,), migration=PATIENT)
        stopping.append(asyncio.create_task(cluster.stop(old)))
        await asyncio.sleep(45.0)
    assert await working == nodes
    assert asyncio.get_running_loop().time() - began < (depth + 1) * 60.0 + 5.0
    assert len(stage.lines) == len(set(stage.lines)) == nodes
    await asyncio.gather(*stopping)


@simulated
async def test_a_call_without_a_deadline_ends_with_the_silo_that_runs_it(mortal: MortalCluster, stage: Stage) -> None:
    a, _ = await mortal.start("a", "b", kinds=(Report, Editor))
    loop = asyncio.get_running_loop()
    report = a.grain(Report, "r")
    await with_hint(report, "b").touch()
    calling = asyncio.create_task(ended(report.write(TEN_MINUTES_S)))
    await asyncio.sleep(TEN_MINUTES_S / 2)
    assert not calling.done()
    died_at = loop.time()
    mortal.kill_now("b")
    assert isinstance(await calling, SiloUnavailable)
    assert loop.time() - died_at < 1.3 * LEASE.lease_s + 1.0
