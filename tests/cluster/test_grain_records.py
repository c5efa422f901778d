"""What an operator sees of a grain, and the order to end its activation, from every state. R-213 to R-220."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from silo.directory.errors import ActivationDamped, ActivationFailed, GrainUnplaceable
from silo.grain import Grain, grain
from silo.grain_records import DeactivationStatus, GrainRecord, GrainState
from silo.host import Silo
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.reference import grain_id, with_timeout
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Witness
from tests.cluster.managed import NearManagement
from tests.cluster.stage import Stage, pass_by, say
from tests.support.late_rows import in_a_task

AT_ONCE_S = 0.05
ORDERED = DeactivationReason.ORDERED
DEACTIVATED, NOT_ACTIVE, UNDER_WAY = (
    DeactivationStatus.DEACTIVATED,
    DeactivationStatus.NOT_ACTIVE,
    DeactivationStatus.UNDER_WAY,
)


@grain(kind="sleepy")
class Sleepy(Grain):
    """Stops wherever the test wants it to, and keeps a number in storage."""

    kept: Persistent[int] = persistent()

    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"wakes {reason}")
        await pass_by("on_activate")
        if self.key == "broken":
            raise RuntimeError("cannot be woken")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"sleeps {reason}")
        await pass_by("on_deactivate")

    async def add(self) -> int:
        self.kept.value += 1
        await self.kept.write()
        return self.kept.value

    async def look(self) -> int:
        return self.kept.value

    async def stay(self) -> int:
        await pass_by("turn")
        return self.kept.value

    async def sleep(self) -> int:
        self.deactivate()
        return self.kept.value


@dataclass
class Scene:
    """A cluster in which one grain is brought into some state. Calls come in at `a`, which hosts none of its kind."""

    cluster: Cluster
    stage: Stage
    management: NearManagement
    a: Silo
    calls: list[asyncio.Future[Any]] = field(default_factory=list[asyncio.Future[Any]])
    """Those that are to be answered in the end."""

    @property
    def sleepy(self) -> Sleepy:
        return self.reference("k")

    def reference(self, key: str) -> Sleepy:
        return with_timeout(self.a.grain(Sleepy, key), 120.0)

    async def host(self, *names: str) -> list[Silo]:
        return await self.cluster.start(*names, kinds=(Sleepy,))

    def call(self, call: Awaitable[int]) -> None:
        self.calls.append(asyncio.ensure_future(call))

    async def record(self, key: str = "k") -> GrainRecord:
        return await self.management.grain(grain_id(self.reference(key)))

    async def becomes(self, state: GrainState) -> GrainRecord:
        async with asyncio.timeout(30.0):
            while (record := await self.record()).state is not state:  # noqa: ASYNC110 - nothing tells the test
                await asyncio.sleep(0.005)
        return record


@pytest.fixture
async def scene(cluster: Cluster, stage: Stage) -> Scene:
    await cluster.start("g", kinds=(Witness,))
    (a,) = await cluster.start("a", kinds=(Witness,))
    return Scene(cluster, stage, NearManagement(cluster), a)


# ------------------------------------------------------------------------------ the order to deactivate, state by state


async def never_called(scene: Scene) -> None:
    await scene.host("b")


async def active(scene: Scene) -> None:
    await scene.host("b")
    await scene.sleepy.add()


async def busy(scene: Scene) -> None:
    await active(scene)
    scene.stage.stop_at("turn")
    scene.call(scene.sleepy.stay())
    await scene.stage.stopped("turn")
    scene.call(scene.sleepy.look())  # waits behind it, and goes to the new activation


async def registering(scene: Scene) -> None:
    """Its silo waits for the directory."""
    (b,) = await scene.host("b")
    register = b.runtime.registrar.register

    async def slow(registration: Any) -> Any:
        say("registers")
        await scene.stage.gate("register").passed()
        return await register(registration)

    patch.object(b.runtime.registrar, "register_soon", in_a_task(slow)).start()  # for the rest of its life
    scene.call(scene.sleepy.look())
    await scene.stage.heard("registers")


async def starting(scene: Scene) -> None:
    await scene.host("b")
    scene.stage.stop_at("on_activate")
    scene.call(scene.sleepy.look())
    await scene.stage.stopped("on_activate")


async def moving(scene: Scene) -> None:
    """At its source, which waits for a running call."""
    await busy(scene)
    await scene.host("c")
    client = await scene.cluster.client()
    scene.calls.append(asyncio.ensure_future(client.migrate(scene.sleepy, to="c")))
    await scene.cluster.draining(scene.sleepy)


async def arriving(scene: Scene) -> None:
    """At its target, which runs `on_activate`."""
    await active(scene)
    await scene.host("c")
    scene.stage.stop_at("on_activate")
    client = await scene.cluster.client()
    scene.calls.append(asyncio.ensure_future(client.migrate(scene.sleepy, to="c")))
    await scene.stage.stopped("on_activate")
    scene.call(scene.sleepy.look())


async def deactivating(scene: Scene) -> None:
    await active(scene)
    scene.stage.stop_at("on_deactivate")
    await scene.sleepy.sleep()
    await scene.stage.stopped("on_deactivate")
    scene.call(scene.sleepy.look())


async def trying(scene: Scene) -> None:
    """The question to the directory is out."""
    lookup = scene.a.runtime.registrar.lookup

    async def slow(grain: Any) -> Any:
        say("looks")
        await scene.stage.gate("lookup").passed()
        return await lookup(grain)

    patch.object(scene.a.runtime.registrar, "look_up", in_a_task(slow)).start()  # likewise
    scene.call(scene.sleepy.look())
    await scene.stage.heard("looks")


async def waiting(scene: Scene) -> None:
    """No silo hosts it, and the pauses are as long as they get."""
    scene.call(scene.sleepy.look())
    await asyncio.sleep(20.0)


async def lost(scene: Scene) -> None:
    """Its silo has died, and its row is there yet."""
    (b,) = await scene.host("b")
    await scene.sleepy.add()
    await scene.cluster.kill("b")
    await scene.cluster.seen(lambda: all(each.view.is_dead(b.address) for each in scene.cluster.silos.values()))


@dataclass(frozen=True)
class Cell:
    """What an order to deactivate makes of one state."""

    arrange: Callable[[Scene], Awaitable[None]]
    state: GrainState
    status: DeactivationStatus
    at_once: bool
    """Whether there is nothing to wait for; else the order waits until the stage lets everybody go."""
    sleeps: tuple[str, ...] = ()
    """How often `on_deactivate` runs, and why, until all calls are answered."""
    wakes: int = 2
    """How often calls have it activated, one more at the end included."""
    kept: int = 1
    """What is stored."""


BY_ITSELF, MIGRATING = DeactivationReason.APPLICATION, DeactivationReason.MIGRATING
CELLS = {
    "never called": Cell(never_called, GrainState.NOT_ACTIVE, NOT_ACTIVE, at_once=True, wakes=1, kept=0),
    "active": Cell(active, GrainState.ACTIVE, DEACTIVATED, at_once=True, sleeps=(ORDERED,)),
    "busy": Cell(busy, GrainState.ACTIVE, DEACTIVATED, at_once=False, sleeps=(ORDERED,)),
    "registering": Cell(registering, GrainState.STARTING, DEACTIVATED, at_once=False, sleeps=(ORDERED,), kept=0),
    "starting": Cell(starting, GrainState.STARTING, DEACTIVATED, at_once=False, sleeps=(ORDERED,), kept=0),
    "moving": Cell(moving, GrainState.MOVING, DEACTIVATED, at_once=False, sleeps=(MIGRATING, ORDERED)),
    "arriving": Cell(arriving, GrainState.STARTING, DEACTIVATED, at_once=False, sleeps=(MIGRATING, ORDERED)),
    "deactivating": Cell(deactivating, GrainState.DEACTIVATING, DEACTIVATED, at_once=False, sleeps=(BY_ITSELF,)),
    "trying": Cell(trying, GrainState.TRYING, NOT_ACTIVE, at_once=True, wakes=1, kept=0),
    "waiting": Cell(waiting, GrainState.WAITING, NOT_ACTIVE, at_once=True, wakes=1, kept=0),
    "lost": Cell(lost, GrainState.LOST, NOT_ACTIVE, at_once=True),
}


def test_R213_there_is_a_cell_for_every_state_of_a_grain() -> None:
    assert {cell.state for cell in CELLS.values()} == set(GrainState) - {GrainState.UNKNOWN}


@pytest.mark.parametrize("name", CELLS)
async def test_R213_R214_R219_R220_an_order_to_deactivate_works_from_every_state_and_the_next_call_begins_afresh(
    scene: Scene, name: str
) -> None:
    cell, loop = CELLS[name], asyncio.get_running_loop()
    await cell.arrange(scene)
    assert (await scene.record()).state is cell.state
    grain = grain_id(scene.sleepy)
    began = loop.time()
    orders = [asyncio.create_task(scene.management.deactivate(grain, timeout_s=60.0)) for _ in range(2)]
    if cell.at_once:
        await asyncio.wait(orders)
        assert loop.time() - began < AT_ONCE_S
    else:
        await asyncio.sleep(1.0)
        assert not any(order.done() for order in orders)
    scene.stage.open_all()
    first, second = [await order for order in orders]
    assert first.status is cell.status
    assert second.status in (cell.status, NOT_ACTIVE), "given again it changes nothing"
    if not any(scene.cluster.silos.keys() & {"b", "c"}):
        await scene.host("d")  # until now there was no place for it
    await asyncio.gather(*scene.calls)
    assert [line for line in scene.stage.lines if line.startswith("sleeps")] == [f"sleeps {why}" for why in cell.sleeps]
    assert await scene.sleepy.look() == cell.kept
    assert scene.stage.lines.count("wakes call") == cell.wakes
    record = await scene.record()
    assert (record.state, record.error) == (GrainState.ACTIVE, "")
    assert (await scene.management.deactivate(grain)).status is DEACTIVATED
    assert (await scene.management.deactivate(grain)).status is NOT_ACTIVE
    assert (await scene.record()).state is GrainState.NOT_ACTIVE


async def test_R213_an_order_that_cannot_be_done_in_its_time_says_what_it_waits_for_and_stands(scene: Scene) -> None:
    await busy(scene)
    outcome = await scene.management.deactivate(grain_id(scene.sleepy), timeout_s=0.5)
    assert (outcome.status, outcome.why) == (UNDER_WAY, "its running calls end first: stay")
    scene.stage.open_all()
    await asyncio.gather(*scene.calls)
    assert scene.stage.lines.count("sleeps ordered") == 1
    assert scene.stage.lines.count("wakes call") == 2


async def test_R213_R218_an_order_for_a_grain_that_waits_for_a_place_forgets_its_tries_and_makes_one_at_once(
    scene: Scene,
) -> None:
    await waiting(scene)
    before = await scene.record()
    assert before.failed_tries > 10
    assert "no silo may host" in before.error
    await scene.management.deactivate(grain_id(scene.sleepy))
    await asyncio.sleep(0.01)
    after = await scene.record()
    assert after.failed_tries == 1
    assert after.waiting_calls == before.waiting_calls == 1
    assert [each.state for each in after.transitions] == ["not placed", "ordered to deactivate", "not placed"]


async def test_R213_an_order_for_a_grain_that_keeps_failing_to_start_has_the_next_call_try_at_once(
    scene: Scene,
) -> None:
    await scene.host("b")
    broken = scene.reference("broken")
    for _ in range(4):
        with pytest.raises(ActivationFailed):
            await broken.look()
    with pytest.raises(ActivationDamped):
        await broken.look()
    record = await scene.record("broken")
    assert record.state is GrainState.NOT_ACTIVE
    assert "cannot be woken" in record.error
    assert [(each.state, each.times, each.silo) for each in record.transitions] == [("not activated", 4, "b")]
    assert (await scene.management.deactivate(grain_id(broken))).status is NOT_ACTIVE
    assert (await scene.record("broken")).error == ""
    with pytest.raises(ActivationFailed):
        await broken.look()


async def test_R213_what_a_silo_that_does_not_answer_hosts_is_not_known_to_be_deactivated(scene: Scene) -> None:
    await active(scene)
    scene.management.silent.add("b")
    outcome = await scene.management.deactivate(grain_id(scene.sleepy))
    assert (outcome.status, outcome.unanswered) == (NOT_ACTIVE, ("b",))
    assert scene.cluster.is_active(scene.sleepy)


# ----------------------------------------------------------------------------------------------------------- the record


async def test_R217_the_record_of_an_active_grain_is_that_of_its_silo(scene: Scene) -> None:
    await active(scene)
    await asyncio.sleep(3.0)
    entry = await scene.cluster.entry(scene.sleepy)
    record = await scene.record()
    assert entry is not None
    assert (record.silo, record.entry, record.epoch) == ("b", entry, entry.epoch)
    assert record.idle_s == pytest.approx(3.0, abs=0.1)
    assert record.reachable_s == pytest.approx(3.0, abs=0.1)
    assert [(each.state, each.silo) for each in record.transitions] == [("active", "b")]
    scene.stage.stop_at("turn")
    for _ in range(4):
        scene.call(scene.sleepy.stay())
    await scene.cluster.queued(scene.sleepy, 3)
    record = await scene.record()
    assert (record.running_calls, record.queued_calls, record.idle_s) == (1, 3, None)
    scene.stage.open_all()
    await asyncio.gather(*scene.calls)


async def test_R217_the_record_of_a_moving_grain_says_where_to(scene: Scene) -> None:
    await moving(scene)
    record = await scene.record()
    assert (record.silo, record.moving_to, record.reachable_s) == ("b", "c", None)
    scene.stage.open_all()
    await asyncio.gather(*scene.calls)
    record = await scene.record()
    assert (record.silo, record.moving_to) == ("c", "")
    assert [(each.state, each.silo) for each in record.transitions] == [("moving", "b"), ("active", "c")]


async def test_R215_R217_the_record_of_a_grain_without_a_place_tells_of_its_tries_and_when_the_next_one_is(
    scene: Scene,
) -> None:
    await waiting(scene)
    record = await scene.becomes(GrainState.WAITING)
    assert (record.silo, record.entry, record.waiting_calls) == (None, None, 1)
    assert record.failed_tries > 10
    assert record.retry_in_s is not None
    assert 0.0 < record.retry_in_s <= 1.5
    assert "it does not host kind 'sleepy'" in record.error
    (tried,) = record.transitions
    assert (tried.state, tried.silo, tried.why) == ("not placed", "a", record.error)
    assert tried.times == record.failed_tries
    scene.calls[0].cancel()


async def test_R216_R217_the_transitions_of_a_grain_that_lost_its_silo_end_with_success_and_no_error(
    scene: Scene,
) -> None:
    await lost(scene)
    scene.call(scene.sleepy.look())
    record = await scene.becomes(GrainState.WAITING)
    assert [each.state for each in record.transitions] == ["served", "lost", "not placed"]
    assert record.reachable_s is None
    assert "no silo may host" in record.error
    await asyncio.sleep(1.0)
    await scene.host("again")
    assert await scene.calls[0] == 1
    record = await scene.record()
    assert [(each.state, each.silo) for each in record.transitions] == [
        ("served", "a"),
        ("lost", "a"),
        ("not placed", "a"),
        ("found", "a"),
        ("active", "again"),
    ]
    assert record.error == ""
    assert record.reachable_s is not None
    assert record.reachable_s < 1.0
    assert record.retry_in_s is None


async def test_R218_what_was_given_up_keeps_its_error_until_it_is_placed(scene: Scene) -> None:
    sleepy = scene.a.grain(Sleepy, "k")
    with pytest.raises(GrainUnplaceable):
        await with_timeout(sleepy, 2.0).look()
    record = await scene.becomes(GrainState.NOT_ACTIVE)
    assert [each.state for each in record.transitions] == ["not placed", "given up"]
    assert "no silo may host" in record.error
    await scene.host("b")
    assert await sleepy.look() == 0
    assert (await scene.record()).error == ""


async def test_R217_a_silo_that_does_not_answer_is_named_and_what_it_serves_is_not_known(scene: Scene) -> None:
    await active(scene)
    scene.management.silent.add("b")
    record = await scene.record()
    assert (record.state, record.silo, record.unanswered) == (GrainState.UNKNOWN, "b", ("b",))


async def test_nothing_is_remembered_of_grains_that_were_never_in_trouble(scene: Scene) -> None:
    await scene.host("b")
    for number in range(50):
        await scene.reference(str(number)).add()
        await scene.reference(str(number)).sleep()
    assert [len(silo.runtime.chronicle) for silo in scene.cluster.silos.values()] == [0, 0, 0]
