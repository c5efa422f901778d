"""Moves of grains that are at work: what runs ends first, what waits goes along. R-419, R-449 and after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from silo.activation.activation import State
from silo.client import Client
from silo.directory.errors import GrainMoved, OutcomeUnknown
from silo.grain import Grain, current_grain, grain, read_only, soft_state
from silo.migrate import migrate
from silo.migration.lifecycle import MigrationNotice
from silo.migration.outcome import MoveStatus
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.reference import grain_id, with_hint
from silo.settings import MigrationSettings
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Ledger
from tests.cluster.stage import Stage, gate, pass_by, say

pytestmark = pytest.mark.real


class _Worker(Grain):
    """Works until a gate opens."""

    done: list[str] = soft_state(default_factory=list)

    def __init__(self) -> None:
        self.running = 0

    async def work(self, name: str, gate_name: str) -> str:
        self.running += 1
        say(f"{name} starts at {self.silo}")
        try:
            await gate(gate_name)
        except asyncio.CancelledError:
            say(f"{name} was interrupted")
            raise
        finally:
            self.running -= 1
        self.done.append(name)
        return self.silo

    async def touch(self) -> str:
        return self.silo

    async def finished(self) -> list[str]:
        return self.done

    @read_only
    async def look(self) -> str:
        return self.silo

    def on_dehydrate(self, context: DehydrateContext) -> None:
        say(f"dehydrated with {self.running} running")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        """Nothing beside the soft state."""


W = TypeVar("W", bound=_Worker)


@grain(kind="worker")
class Worker(_Worker):
    pass


@grain(kind="juggler", reentrant=True)
class Juggler(_Worker):
    async def work_for(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.silo


@grain(kind="homebody", on_busy="stay")
class Homebody(_Worker):
    async def on_migrating(self, notice: MigrationNotice) -> None:
        await pass_by(f"notice of {notice.target}")


@grain(kind="nervous", on_busy="interrupt")
class Nervous(_Worker):
    pass


@grain(kind="limited", drain_timeout=0.2)
class Limited(_Worker):
    pass


async def at_work(
    cluster: Cluster, stage: Stage, kind: type[W], *, opens: str = "go", **settings: Any
) -> tuple[Client, W, asyncio.Task[str]]:
    """Two silos, a grain on the first one, and a long call that it runs until the gate of that name opens."""
    await cluster.start("a", "b", kinds=(kind,), **settings)
    client = await cluster.client()
    worker = with_hint(client.grain(kind, "k"), "a")
    await worker.touch()
    running = asyncio.create_task(worker.work("long", opens))
    await stage.heard("long starts at a")
    return client, worker, running


async def test_R419_R459_interleaved_calls_end_first_nothing_starts_meanwhile_and_then_it_is_dehydrated(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Juggler,))
    client = await cluster.client()
    juggler = with_hint(client.grain(Juggler, "k"), "a")
    await juggler.touch()
    running = [asyncio.create_task(juggler.work(f"old {number}", f"go {number}")) for number in range(3)]
    for number in range(3):
        await stage.heard(f"old {number} starts at a")
    moving = asyncio.create_task(client.migrate(juggler, to="b"))
    await cluster.draining(juggler)
    late = [asyncio.create_task(juggler.work(f"new {number}", "go new")) for number in range(3)]
    await cluster.queued(juggler, 3)
    for number in (1, 0):
        stage.gate(f"go {number}").open()
        await running[number]
    assert not any(line.startswith(("new", "dehydrated")) for line in stage.lines)
    stage.gate("go 2").open()
    stage.gate("go new").open()
    assert (await moving).moved
    assert await asyncio.gather(*running) == ["a"] * 3
    assert await asyncio.gather(*late) == ["b"] * 3
    assert stage.lines.index("dehydrated with 0 running") == 3


@grain(kind="upstream")
class Upstream(Grain):
    async def ask(self, key: str) -> str:
        say("asking")
        return f"{self.silo} heard from {await self.grain(Worker, key).work('downstream', 'go')}"

    async def touch(self) -> str:
        return self.silo


async def test_R449_moving_a_caller_cancels_nothing_downstream_and_the_reply_finds_it(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", "c", kinds=(Worker, Upstream))
    client = await cluster.client()
    upstream, worker = client.grain(Upstream, "u"), client.grain(Worker, "w")
    await with_hint(upstream, "a").touch()
    await with_hint(worker, "b").touch()
    asking = asyncio.create_task(upstream.ask("w"))
    await stage.heard("downstream starts at b")
    moving = asyncio.create_task(client.migrate(upstream, to="c"))
    await cluster.draining(upstream)
    stage.gate("go").open()
    assert await asking == "a heard from b"
    assert (await moving).moved
    assert await upstream.touch() == "c"
    assert "downstream was interrupted" not in stage.lines


async def test_R449_both_ends_of_a_running_call_may_be_on_the_move(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", "c", kinds=(Worker, Upstream))
    client = await cluster.client()
    upstream, worker = client.grain(Upstream, "u"), client.grain(Worker, "w")
    await with_hint(upstream, "a").touch()
    await with_hint(worker, "b").touch()
    asking = asyncio.create_task(upstream.ask("w"))
    await stage.heard("downstream starts at b")
    moving = [asyncio.create_task(client.migrate(each, to="c")) for each in (upstream, worker)]
    await cluster.draining(upstream)
    await cluster.draining(worker)
    stage.gate("go").open()
    assert await asking == "a heard from b"
    assert all(outcome.moved for outcome in await asyncio.gather(*moving))


async def test_R443_R450_a_move_whose_drain_takes_too_long_is_aborted_and_all_calls_are_answered_at_the_old_place(
    cluster: Cluster, stage: Stage
) -> None:
    client, limited, running = await at_work(cluster, stage, Limited)
    moving = asyncio.create_task(client.migrate(limited, to="b"))
    await cluster.draining(limited)
    waiting = asyncio.create_task(limited.touch())
    outcome = await moving
    assert outcome.status is MoveStatus.ABORTED
    assert "0.2 s" in outcome.why
    assert not running.done()
    stage.gate("go").open()
    assert (await running, await waiting) == ("a", "a")
    assert await limited.finished() == ["long"]
    assert (await client.migrate(limited, to="b")).moved


async def test_R450_a_call_that_was_running_when_its_silo_had_to_stop_is_told_so_and_not_left_hanging(
    cluster: Cluster, stage: Stage
) -> None:
    _, worker, running = await at_work(
        cluster, stage, Worker, opens="never", migration=MigrationSettings(shutdown_timeout_s=0.5)
    )
    started = asyncio.get_running_loop().time()
    stopping = asyncio.create_task(cluster.stop("a"))
    with pytest.raises(OutcomeUnknown):
        await running
    await stopping
    assert asyncio.get_running_loop().time() - started < 5.0
    assert await worker.touch() == "b"


@grain(kind="runaway", on_busy="stay", drain_timeout=0.1)
class Runaway(_Worker):
    """Goes on after its work, whatever has become of its grain."""

    async def run(self) -> None:
        say("runs")
        await gate("go on")
        try:
            await self.grain(Ledger, "l").write("from the past")
        except GrainMoved:
            say("call: GrainMoved")
        try:
            self.migrate()
        except GrainMoved:
            say("move: GrainMoved")
        self.done.append("too late")


async def test_R450_R451_a_silo_that_must_stop_takes_the_grain_along_and_leaves_its_runaway_turn_behind(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Runaway, Ledger), migration=MigrationSettings(shutdown_timeout_s=4.0))
    client = await cluster.client()
    runaway = with_hint(client.grain(Runaway, "k"), "a")
    await with_hint(client.grain(Ledger, "l"), "b").read()
    stage.gate("short").open()
    await runaway.work("short", "short")
    running = asyncio.create_task(runaway.run())
    await stage.heard("runs")
    started = asyncio.get_running_loop().time()
    stopping = asyncio.create_task(cluster.stop("a"))
    await cluster.seen(lambda: cluster.silos["b"].runtime.catalog.get(grain_id(runaway)) is not None)
    assert 2.0 < asyncio.get_running_loop().time() - started < 4.0  # as long as can be, and no longer
    with pytest.raises(OutcomeUnknown, match="left behind"):
        await running
    stage.gate("go on").open()
    await stage.heard("move: GrainMoved")
    await stopping
    assert "call: GrainMoved" in stage.lines
    assert await runaway.finished() == ["short"]
    assert await client.grain(Ledger, "l").read() == []


@grain(kind="unwanted")
class Unwanted(Grain):
    """Is not taken anywhere else, and has a turn that does not end."""

    name: str = soft_state(default="")

    def __init__(self) -> None:
        self.runs = False
        say(f"built at {self.silo}")

    async def run(self, name: str) -> None:
        self.name, self.runs = name, True
        say("runs")
        await gate("never")

    async def look(self) -> tuple[str, str, bool]:
        return self.silo, self.name, self.runs

    def on_dehydrate(self, context: DehydrateContext) -> None:
        """Nothing beside the soft state."""

    def on_rehydrate(self, context: RehydrateContext) -> None:
        if self.silo == "b":
            raise LookupError("not here")


@pytest.mark.in_memory
async def test_R451_a_grain_that_stays_after_all_shares_no_instance_with_the_turn_it_has_left_behind(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Unwanted,), migration=MigrationSettings(shutdown_timeout_s=4.0))
    client = await cluster.client()
    unwanted = with_hint(client.grain(Unwanted, "k"), "a")
    running = asyncio.create_task(unwanted.run("ada"))
    await stage.heard("runs")
    waiting = asyncio.create_task(unwanted.look())
    await cluster.queued(unwanted, 1)
    stopping = asyncio.create_task(cluster.stop("a"))
    with pytest.raises(OutcomeUnknown, match="left behind"):
        await running
    assert await waiting == ("a", "ada", False)
    await stopping
    assert stage.lines[:3] == ["built at a", "runs", "built at b"]
    assert stage.lines[3] == "built at a"


async def test_R470_a_silo_that_stops_waits_for_calls_that_end_in_time_though_the_kind_gives_them_less(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Runaway, Ledger), migration=MigrationSettings(shutdown_timeout_s=10.0))
    client = await cluster.client()
    runaway = with_hint(client.grain(Runaway, "k"), "a")
    running = asyncio.create_task(runaway.work("long", "go"))
    await stage.heard("long starts at a")
    draining = cluster.activation(runaway)
    stopping = asyncio.create_task(cluster.stop("a"))
    await cluster.seen(lambda: draining.state is State.DRAINING)
    await asyncio.sleep(1.0)  # ten times what the kind gives
    stage.gate("go").open()
    assert await running == "a"
    await stopping
    assert await runaway.finished() == ["long"]


async def test_R442_a_kind_that_says_interrupt_moves_at_once_and_the_callers_do_not_know_how_it_ended(
    cluster: Cluster, stage: Stage
) -> None:
    client, nervous, running = await at_work(cluster, stage, Nervous, opens="never")
    waiting = asyncio.create_task(nervous.touch())
    await cluster.queued(nervous, 1)
    assert (await client.migrate(nervous, to="b")).moved
    with pytest.raises(OutcomeUnknown, match="interrupted"):
        await running
    assert await waiting == "b"
    assert "long was interrupted" in stage.lines


@grain(kind="forgetful")
class Forgetful(Grain):
    """Leaves a task behind in its turn, which goes on after the grain has moved."""

    async def start(self) -> str:
        self._task = asyncio.create_task(self._go_on())
        return self.silo

    async def touch(self) -> str:
        return self.silo

    async def _go_on(self) -> None:
        say("left behind")
        await gate("go on")
        uses: dict[str, Callable[[], object]] = {
            "call": lambda: self.grain(Ledger, "l").write("from the past"),
            "move": lambda: self.migrate(to="a"),
            "deactivate": self.deactivate,
            "current": lambda: current_grain().deactivate(),
        }
        for what, use in uses.items():
            try:
                result = use()
                if isinstance(result, Awaitable):
                    await result
            except GrainMoved:
                say(f"{what}: GrainMoved")
            else:
                say(f"{what}: allowed")
        say("over")


async def test_R451_what_a_moved_grain_has_left_running_may_use_the_runtime_no_more(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Forgetful, Ledger))
    client = await cluster.client()
    forgetful = with_hint(client.grain(Forgetful, "k"), "a")
    await forgetful.start()
    await stage.heard("left behind")
    assert (await client.migrate(forgetful, to="b")).moved
    stage.gate("go on").open()
    await stage.heard("over")
    assert stage.lines[1:] == [
        "call: GrainMoved",
        "move: GrainMoved",
        "deactivate: GrainMoved",
        "current: GrainMoved",
        "over",
    ]
    assert await client.grain(Ledger, "l").read() == []
    assert await forgetful.touch() == "b"


@grain(kind="noticing")
class Noticing(Grain):
    """Ends its long work when it is told that it shall move."""

    def __init__(self) -> None:
        self.shall_stop = asyncio.Event()

    async def work(self) -> str:
        say("working")
        await self.shall_stop.wait()
        return f"stopped early at {self.silo}"

    @read_only
    async def look(self) -> str:
        return self.silo

    async def on_migrating(self, notice: MigrationNotice) -> None:
        say(f"notice: {notice.reason}, {notice.target}, {notice.left_s}")
        await gate("noticed")
        self.shall_stop.set()


async def test_R453_the_notice_comes_before_new_calls_are_held_and_lets_long_work_end_early(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Noticing,), migration=MigrationSettings(drain_timeout_s=42.0))
    client = await cluster.client()
    noticing = with_hint(client.grain(Noticing, "k"), "a")
    await noticing.look()
    moving = asyncio.create_task(client.migrate(noticing, to="b", reason="upgrade"))
    await stage.heard("notice: upgrade, b, 42.0")
    assert await noticing.look() == "a"  # nothing is held while the notice runs
    working = asyncio.create_task(noticing.work())
    await stage.heard("working")
    stage.gate("noticed").open()
    assert await working == "stopped early at a"
    assert (await moving).moved
    assert await noticing.look() == "b"


async def test_R458_stay_a_grain_that_is_still_busy_after_the_notice_stays_and_its_queue_goes_on(
    cluster: Cluster, stage: Stage
) -> None:
    client, homebody, running = await at_work(cluster, stage, Homebody)
    waiting = asyncio.create_task(homebody.touch())
    await cluster.queued(homebody, 1)
    stage.stop_at("notice of b")
    moving = asyncio.create_task(client.migrate(homebody, to="b"))
    await stage.stopped("notice of b")
    stage.gate("notice of b").open()
    outcome = await moving
    assert outcome.status is MoveStatus.ABORTED
    assert "busy" in outcome.why
    stage.gate("go").open()
    assert (await running, await waiting) == ("a", "a")


async def test_R458_stay_a_grain_whose_calls_end_during_the_notice_moves(cluster: Cluster, stage: Stage) -> None:
    client, homebody, running = await at_work(cluster, stage, Homebody)
    stage.stop_at("notice of b")
    moving = asyncio.create_task(client.migrate(homebody, to="b"))
    await stage.stopped("notice of b")
    stage.gate("go").open()
    assert await running == "a"
    stage.gate("notice of b").open()
    assert (await moving).moved


async def test_R458_an_order_says_how_to_treat_running_calls_whatever_the_kind_says_and_the_outcome_tells(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Worker, Homebody))
    client = await cluster.client()
    worker = with_hint(client.grain(Worker, "k"), "a")
    await worker.touch()
    running = asyncio.create_task(worker.work("long", "go"))
    await stage.heard("long starts at a")
    stays = await client.migrate(worker, to="b", on_busy="stay")
    assert (stays.status, stays.on_busy) == (MoveStatus.ABORTED, "stay")
    assert "asked to stay" in stays.why
    interrupts = await migrate(worker, to="b", on_busy="interrupt")
    assert (interrupts.status, interrupts.on_busy) == (MoveStatus.MOVED, "interrupt")
    with pytest.raises(OutcomeUnknown, match="interrupted"):
        await running
    homebody = with_hint(client.grain(Homebody, "k"), "a")
    await homebody.touch()
    running = asyncio.create_task(homebody.work("home", "go"))
    await stage.heard("home starts at a")
    moving = asyncio.create_task(cluster.silos["a"].migrate(homebody, to="b", on_busy="wait"))
    await cluster.draining(homebody)
    stage.gate("go").open()
    waits = await moving
    assert (waits.status, waits.on_busy) == (MoveStatus.MOVED, "wait")
    assert await running == "a"


async def test_R442_a_second_order_may_interrupt_what_the_first_one_waits_for(cluster: Cluster, stage: Stage) -> None:
    client, worker, running = await at_work(cluster, stage, Worker, opens="never")
    first = asyncio.create_task(client.migrate(worker, to="b"))
    await cluster.draining(worker)
    second = await client.migrate(worker, to="b", on_busy="interrupt")
    assert await first == second
    assert second.moved
    with pytest.raises(OutcomeUnknown, match="interrupted"):
        await running


@grain(kind="restless")
class Restless(Grain):
    """Orders its own move while another of its calls runs."""

    @read_only
    async def work(self) -> str:
        say("working")
        await gate("never")
        return self.silo

    @read_only
    async def leave(self) -> None:
        self.migrate(to="b", on_busy="interrupt")

    async def touch(self) -> str:
        return self.silo


async def test_R442_a_grain_may_interrupt_its_own_calls_to_move(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Restless,))
    client = await cluster.client()
    restless = with_hint(client.grain(Restless, "k"), "a")
    await restless.touch()
    running = asyncio.create_task(restless.work())
    await stage.heard("working")
    await asyncio.gather(restless.leave(), return_exceptions=True)
    with pytest.raises(OutcomeUnknown, match="interrupted"):
        await running
    assert await restless.touch() == "b"


async def test_R442_an_order_that_says_nothing_known_is_refused_where_it_is_made(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Worker,))
    client = await cluster.client()
    with pytest.raises(ValueError, match="did you mean 'interrupt'"):
        await client.migrate(client.grain(Worker, "k"), on_busy="interupt")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - a mistake


@grain(kind="node", on_busy="wait")
class Node(Grain):
    """One node of a tree of calls: it waits for its children; the leaves work."""

    async def compute(self, depth: int) -> int:
        say(f"computes {self.key}")
        if depth == 0:
            await gate("leaves")
            return 1
        children = (self.grain(Node, f"{self.key}{side}").compute(depth - 1) for side in "lr")
        return 1 + sum(await asyncio.gather(*children))

    @read_only
    async def where(self) -> str:
        return self.silo


async def test_R454_moving_the_waiting_parents_of_a_tree_of_calls_restarts_nothing(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", "c", kinds=(Node,))
    client = await cluster.client()
    depth = 4
    computing = asyncio.create_task(client.grain(Node, "n").compute(depth))
    nodes = 2 ** (depth + 1) - 1
    await cluster.seen(lambda: len(stage.lines) == nodes)
    keys = [line.removeprefix("computes ") for line in stage.lines]
    grains = [client.grain(Node, key) for key in keys]
    moving = asyncio.create_task(client.migrate_many(grains))
    for each in grains:
        await cluster.draining(each)
    stage.gate("leaves").open()
    assert await computing == nodes
    assert {outcome.status for outcome in await moving} == {MoveStatus.MOVED}
    assert len(stage.lines) == len(set(stage.lines)) == nodes


@pytest.mark.in_memory
async def test_R454_rolling_the_cluster_under_a_tree_of_calls_restarts_nothing(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", "c", kinds=(Node,))
    client = await cluster.client()
    computing = asyncio.create_task(client.grain(Node, "n").compute(4))
    await cluster.seen(lambda: len(stage.lines) == 31)
    rolling = asyncio.create_task(cluster.stop("a"))
    await cluster.seen(lambda: any(line for line in stage.lines))
    await asyncio.sleep(1.0)
    stage.gate("leaves").open()
    assert await computing == 31
    await rolling
    await cluster.start("a", kinds=(Node,))
    await cluster.stop("b")
    assert len(stage.lines) == 31


async def test_R456_a_grain_under_constant_overlapping_load_still_moves(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Juggler,))
    client = await cluster.client()
    juggler = with_hint(client.grain(Juggler, "k"), "a")
    await juggler.touch()
    longest_s = 0.2
    calls: list[asyncio.Task[str]] = []
    goes_on = True

    async def overlap() -> None:
        while goes_on:
            calls.append(asyncio.create_task(juggler.work_for(longest_s)))
            await asyncio.sleep(longest_s / 5)

    load = asyncio.create_task(overlap())
    await cluster.seen(lambda: cluster.activation(juggler).turns.running_count >= 3)
    started = asyncio.get_running_loop().time()
    outcome = await client.migrate(juggler, to="b")
    took_s = asyncio.get_running_loop().time() - started
    goes_on = False
    await load
    answers = await asyncio.gather(*calls)
    assert outcome.moved
    assert outcome.held_calls > 0
    assert took_s < longest_s + 1.0
    assert set(answers) == {"a", "b"}
    assert answers == sorted(answers)


async def test_R419_what_a_running_turn_waits_for_may_still_come_in_while_its_grain_drains(
    cluster: Cluster, stage: Stage
) -> None:
    """Else the drain would wait for a call that waits for the drain."""
    await cluster.start("a", "b", kinds=(Pair,))
    client = await cluster.client()
    one, two = client.grain(Pair, "one"), client.grain(Pair, "two")
    await with_hint(one, "a").touch()
    await with_hint(two, "b").touch()
    running = asyncio.create_task(one.go_round("two"))
    await stage.heard("going round")
    moving = asyncio.create_task(client.migrate(one, to="b"))
    await cluster.draining(one)
    stage.gate("go").open()
    assert await running == "a came back to a"
    assert (await moving).moved


@grain(kind="pair", reentrant="call_chain")
class Pair(Grain):
    async def go_round(self, other: str) -> str:
        say("going round")
        await gate("go")
        return f"{self.silo} came back to {await self.grain(Pair, other).call_back(self.key)}"

    async def call_back(self, key: str) -> str:
        return await self.grain(Pair, key).touch()

    async def touch(self) -> str:
        return self.silo


async def test_a_caller_that_gives_up_while_the_grain_drains_takes_its_call_out_of_the_queue(
    cluster: Cluster, stage: Stage
) -> None:
    client, worker, running = await at_work(cluster, stage, Worker)
    moving = asyncio.create_task(client.migrate(worker, to="b"))
    await cluster.draining(worker)
    waiting = asyncio.create_task(worker.work("late", "go"))
    await cluster.queued(worker, 1)
    waiting.cancel()
    await cluster.seen(lambda: cluster.waiting(worker) == 0)
    assert cluster.activation(worker).state is State.DRAINING
    stage.gate("go").open()
    assert (await moving).held_calls == 0
    assert await running == "a"
    assert await worker.finished() == ["long"]
