"""Tasks that a grain starts through the runtime, and scopes in which it is not to be moved. R-435, R-440."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from silo.directory.errors import GrainMoved
from silo.grain import Grain, grain, soft_state
from silo.migration.lifecycle import DeactivationReason
from silo.migration.outcome import MoveStatus
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.reference import with_hint
from silo.settings import MigrationSettings
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Ledger
from tests.cluster.stage import Stage, gate, say


class _Busy(Grain):
    """Has a task beside its turns."""

    done: list[str] = soft_state(default_factory=list)

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, name: str) -> None:
        self.tasks.append(self.create_task(self._work(name)))

    async def begin_failing(self) -> None:
        self.create_task(self._fail(), name="failing")

    async def begin_stubborn(self) -> None:
        self.create_task(self._refuse_to_end())

    async def finished(self) -> list[str]:
        return self.done

    async def where(self) -> str:
        return self.silo

    async def leave(self) -> None:
        self.deactivate()

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"on_deactivate with {sum(not task.done() for task in self.tasks)} running")

    def on_dehydrate(self, context: DehydrateContext) -> None:
        say("dehydrated")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        """Nothing beside the soft state."""

    async def _work(self, name: str) -> None:
        say(f"{name} begins")
        try:
            await gate(name)
        except asyncio.CancelledError:
            say(f"{name} is cancelled")
            raise
        await self.grain(Ledger, "l").write(name)
        self.done.append(name)
        say(f"{name} is done")

    async def _fail(self) -> None:
        say("failing")
        raise LookupError("no such thing")

    async def _refuse_to_end(self) -> None:
        say("stubborn begins")
        while True:
            try:
                await gate("stubborn")
                break
            except asyncio.CancelledError:
                say("stubborn will not")
        try:
            await self.grain(Ledger, "l").write("from the past")
        except GrainMoved:
            say("stubborn: GrainMoved")


@grain(kind="busy")
class Busy(_Busy):
    pass


@grain(kind="patient", drain_tasks=True, drain_timeout=30)
class Patient(_Busy):
    pass


async def test_R435_a_task_of_a_grain_acts_for_it_and_is_cancelled_before_it_is_deactivated_for_a_move(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Busy, Ledger))
    client = await cluster.client()
    busy = with_hint(client.grain(Busy, "k"), "a")
    await busy.begin("short")
    stage.gate("short").open()
    await stage.heard("short is done")
    await busy.begin("long")
    await stage.heard("long begins")
    assert (await client.migrate(busy, to="b")).moved
    assert stage.lines[-4:-1] == ["long begins", "long is cancelled", "on_deactivate with 0 running"]
    assert await busy.finished() == ["short"]
    assert await client.grain(Ledger, "l").read() == ["short"]


async def test_R435_a_kind_that_says_so_has_its_tasks_waited_for(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient, Ledger))
    client = await cluster.client()
    patient = with_hint(client.grain(Patient, "k"), "a")
    await patient.begin("long")
    await stage.heard("long begins")
    moving = asyncio.create_task(client.migrate(patient, to="b"))
    await cluster.draining(patient)
    await asyncio.sleep(10.0)
    assert not moving.done()
    stage.gate("long").open()
    assert (await moving).moved
    assert stage.lines[-3:] == ["long is done", "on_deactivate with 0 running", "dehydrated"]
    assert await patient.finished() == ["long"]
    assert await patient.where() == "b"


async def test_R435_R443_tasks_that_do_not_end_in_the_kinds_time_abort_the_move_and_go_on(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Patient, Ledger))
    client = await cluster.client()
    patient = with_hint(client.grain(Patient, "k"), "a")
    await patient.begin("long")
    await stage.heard("long begins")
    outcome = await client.migrate(patient, to="b")
    assert outcome.status is MoveStatus.ABORTED
    assert "30" in outcome.why
    busy = await client.migrate(patient, to="b", on_busy="stay")
    assert "busy" in busy.why
    stage.gate("long").open()
    await stage.heard("long is done")
    assert await patient.finished() == ["long"]


async def test_R435_a_move_that_interrupts_cancels_the_tasks_too(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient, Ledger))
    client = await cluster.client()
    patient = with_hint(client.grain(Patient, "k"), "a")
    await patient.begin("long")
    await stage.heard("long begins")
    assert (await client.migrate(patient, to="b", on_busy="interrupt")).moved
    assert "long is cancelled" in stage.lines


async def test_R435_tasks_end_with_the_activation(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", kinds=(Busy, Ledger))
    client = await cluster.client()
    busy = client.grain(Busy, "k")
    await busy.begin("long")
    await stage.heard("long begins")
    await busy.leave()
    await cluster.seen(lambda: not cluster.is_active(busy))
    assert stage.lines == ["long begins", "long is cancelled", "on_deactivate with 0 running"]


async def test_R451_a_task_that_will_not_end_is_left_behind_and_may_do_nothing_any_more(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Busy, Ledger))
    client = await cluster.client()
    busy = with_hint(client.grain(Busy, "k"), "a")
    await busy.begin_stubborn()
    await stage.heard("stubborn begins")
    assert (await client.migrate(busy, to="b")).moved
    stage.gate("stubborn").open()
    await stage.heard("stubborn: GrainMoved")
    assert await client.grain(Ledger, "l").read() == []


async def test_R435_a_task_that_fails_leaves_the_grain_as_it_is(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient, Ledger))
    client = await cluster.client()
    patient = with_hint(client.grain(Patient, "k"), "a")
    await patient.begin_failing()
    await stage.heard("failing")
    assert await patient.where() == "a"
    assert (await client.migrate(patient, to="b")).moved


@grain(kind="teller", drain_timeout=5)
class Teller(Grain):
    """A transaction over several calls must find the grain where it began."""

    entries: list[str] = soft_state(default_factory=list)

    def __init__(self) -> None:
        self.open = ExitStack()
        self.pending: list[str] = []

    async def begin(self) -> str:
        self.open.enter_context(self.block_migration("a transaction is open"))
        return self.silo

    async def write(self, line: str) -> str:
        self.pending.append(line)
        return self.silo

    async def commit(self) -> str:
        self.entries += self.pending
        self.pending = []
        self.open.close()
        return self.silo

    async def read(self) -> list[str]:
        return self.entries

    async def where(self) -> str:
        return self.silo


async def test_R440_a_grain_with_an_open_transaction_moves_once_it_ends_and_its_calls_go_on_meanwhile(
    cluster: Cluster,
) -> None:
    await cluster.start("a", "b", kinds=(Teller,))
    client = await cluster.client()
    teller = with_hint(client.grain(Teller, "k"), "a")
    await teller.begin()
    moving = asyncio.create_task(client.migrate(teller, to="b"))
    for line in ("one", "two"):
        await asyncio.sleep(1.0)
        assert await teller.write(line) == "a"
    assert not moving.done()
    await teller.commit()
    assert (await moving).moved
    assert await teller.read() == ["one", "two"]
    assert await teller.where() == "b"


async def test_R440_a_transaction_that_stays_open_aborts_the_move_and_is_named(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Teller,))
    client = await cluster.client()
    teller = with_hint(client.grain(Teller, "k"), "a")
    await teller.begin()
    outcome = await client.migrate(teller, to="b")
    assert outcome.status is MoveStatus.ABORTED
    assert "a transaction is open" in outcome.why
    stays = await client.migrate(teller, to="b", on_busy="stay")
    assert "a transaction is open" in stays.why
    assert await teller.write("one") == "a"
    await teller.commit()
    assert (await client.migrate(teller, to="b")).moved


async def test_R440_a_silo_that_must_stop_moves_the_grain_in_the_end_all_the_same(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Teller,), migration=MigrationSettings(shutdown_timeout_s=8.0))
    client = await cluster.client()
    teller = with_hint(client.grain(Teller, "k"), "a")
    await teller.begin()
    await teller.write("lost, since it was never committed")
    stopping = asyncio.create_task(cluster.stop("a"))
    await cluster.arrived(teller, "b")
    await stopping
    assert await teller.read() == []
