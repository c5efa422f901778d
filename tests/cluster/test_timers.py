"""In-memory timers of grains: their ticks are turns, and a move takes them along. R-473."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from silo.activation.timers import GrainTimer
from silo.directory.errors import InvalidGrain
from silo.grain import Grain, grain, soft_state
from silo.migration.lifecycle import ActivationReason
from silo.migration.outcome import MoveStatus
from silo.reference import with_hint
from silo.settings import ActivationSettings
from tests.cluster.clusters import Cluster
from tests.cluster.stage import Stage, gate, say


def now() -> float:
    return asyncio.get_running_loop().time()


class _Clockwork(Grain):
    """Ticks, and says when."""

    ticks: list[float] = soft_state(default_factory=list)

    def __init__(self) -> None:
        self.timers: dict[str, GrainTimer] = {}
        self.is_ticking = False

    async def start(self, method: str, due_s: float, period_s: float | None = None, interleave: bool = False) -> None:
        self.timers[method] = self.register_timer(method, due_s, period_s, interleave=interleave)

    async def start_bound(self, due_s: float) -> None:
        self.register_timer(self._tick, due_s)

    async def start_loose(self, due_s: float, period_s: float) -> None:
        async def loose() -> None:
            self.ticks.append(now())

        self.register_timer(loose, due_s, period_s)

    async def stop(self, method: str) -> bool:
        self.timers[method].cancel()
        return self.timers[method].is_active

    async def seen(self) -> list[float]:
        return self.ticks

    async def hold(self, gate_name: str) -> str:
        say("holding")
        await gate(gate_name)
        return self.silo

    async def where(self) -> str:
        return self.silo

    async def leave(self) -> None:
        self.deactivate()

    async def _tick(self) -> None:
        assert not self.is_ticking, "two ticks at once"
        self.is_ticking = True
        self.ticks.append(now())
        say(f"tick at {self.silo}")
        await asyncio.sleep(0.1)
        self.is_ticking = False

    async def _slow_tick(self) -> None:
        say("slow tick begins")
        await gate("slow tick")
        say(f"slow tick ends at {self.silo}")

    async def _broken_tick(self) -> None:
        self.ticks.append(now())
        raise LookupError("no such thing")


@grain(kind="clockwork")
class Clockwork(_Clockwork):
    pass


@grain(kind="nervous_clockwork", on_busy="interrupt")
class NervousClockwork(_Clockwork):
    pass


@pytest.fixture
async def clockwork(cluster: Cluster) -> Clockwork:
    await cluster.start("a", "b", "c", kinds=(Clockwork, NervousClockwork, Starter, Arriving))
    client = await cluster.client()
    made = with_hint(client.grain(Clockwork, "k"), "a")
    await made.where()
    return made


async def test_R473_a_timer_ticks_when_it_is_due_and_its_period_counts_from_the_end_of_a_tick(
    clockwork: Clockwork,
) -> None:
    started = now()
    await clockwork.start("_tick", 1.0, 2.0)
    await asyncio.sleep(8.0)
    assert [round(tick - started, 1) for tick in await clockwork.seen()] == [1.0, 3.1, 5.2, 7.3]


async def test_R473_a_timer_without_a_period_ticks_once(clockwork: Clockwork) -> None:
    await clockwork.start_bound(0.0)
    await asyncio.sleep(10.0)
    assert len(await clockwork.seen()) == 1


async def test_R473_a_tick_is_a_turn_and_waits_for_the_one_that_runs(clockwork: Clockwork, stage: Stage) -> None:
    await clockwork.start("_tick", 1.0)
    running = asyncio.create_task(clockwork.hold("go"))
    await stage.heard("holding")
    await asyncio.sleep(5.0)
    assert "tick at a" not in stage.lines
    stage.gate("go").open()
    await running
    await stage.heard("tick at a")


async def test_R473_a_tick_that_interleaves_does_not_wait(clockwork: Clockwork, stage: Stage) -> None:
    await clockwork.start("_tick", 1.0, interleave=True)
    running = asyncio.create_task(clockwork.hold("go"))
    await stage.heard("tick at a")
    stage.gate("go").open()
    await running


async def test_R473_a_cancelled_timer_ticks_no_more_even_where_a_tick_waits_for_its_turn(
    clockwork: Clockwork, stage: Stage
) -> None:
    await clockwork.start("_tick", 1.0, 1.0)
    await stage.heard("tick at a")
    assert not await clockwork.stop("_tick")
    seen = await clockwork.seen()
    await asyncio.sleep(10.0)
    assert await clockwork.seen() == seen

    await clockwork.start("_tick", 1.0, 1.0)
    first = asyncio.create_task(clockwork.hold("go"))
    await stage.heard("holding")
    stopping = asyncio.create_task(clockwork.stop("_tick"))
    await asyncio.sleep(5.0)  # the tick stands behind the call that stops it
    stage.gate("go").open()
    await asyncio.gather(first, stopping)
    assert await clockwork.seen() == seen


async def test_R473_a_tick_that_raises_is_not_the_end_of_its_timer(clockwork: Clockwork) -> None:
    await clockwork.start("_broken_tick", 1.0, 1.0)
    await asyncio.sleep(4.5)
    assert len(await clockwork.seen()) == 4


async def test_R473_a_timer_goes_with_its_grain_and_is_due_when_it_would_have_been(
    cluster: Cluster, clockwork: Clockwork
) -> None:
    client = await cluster.client()
    started = now()
    await clockwork.start("_tick", 10.0, 5.0)
    for silo in ("b", "c", "b"):
        await asyncio.sleep(2.0)
        assert (await client.migrate(clockwork, to=silo)).moved
    await asyncio.sleep(started + 16.0 - now())
    assert [round(tick - started, 1) for tick in await clockwork.seen()] == [10.0, 15.1]
    assert await clockwork.where() == "b"


async def test_R473_what_falls_due_while_the_grain_moves_ticks_once_at_the_new_place(
    cluster: Cluster, clockwork: Clockwork, stage: Stage
) -> None:
    client = await cluster.client()
    await clockwork.start("_tick", 1.0, 1.0)
    running = asyncio.create_task(clockwork.hold("go"))
    await stage.heard("holding")
    await asyncio.sleep(1.5)  # it is due, and waits for its turn
    moving = asyncio.create_task(client.migrate(clockwork, to="b"))
    await cluster.draining(clockwork)
    await asyncio.sleep(5.0)
    assert stage.lines == ["holding"]
    stage.gate("go").open()
    assert (await moving).moved
    assert await running == "a"
    assert (await moving).held_calls == 0
    await stage.heard("tick at b")
    assert "tick at a" not in stage.lines


async def test_R473_a_move_waits_for_a_tick_that_runs(cluster: Cluster, clockwork: Clockwork, stage: Stage) -> None:
    client = await cluster.client()
    await clockwork.start("_slow_tick", 1.0, 1.0)
    await stage.heard("slow tick begins")
    moving = asyncio.create_task(client.migrate(clockwork, to="b"))
    await cluster.draining(clockwork)
    stage.gate("slow tick").open()
    assert (await moving).moved
    await stage.heard("slow tick ends at a")
    await stage.heard("slow tick ends at b")


async def test_R473_a_tick_that_was_interrupted_by_a_move_comes_again(cluster: Cluster, clockwork: Clockwork) -> None:
    client = await cluster.client()
    nervous = with_hint(client.grain(NervousClockwork, "k"), "a")
    await nervous.start("_slow_tick", 1.0, 3.0)
    await asyncio.sleep(2.0)
    assert (await client.migrate(nervous, to="b")).moved
    assert cluster.activation(nervous).work is not None
    (timer,) = cluster.activation(nervous).work.timers  # type: ignore[union-attr] # pyright: ignore[reportOptionalMemberAccess] - just seen
    assert 2.0 < timer.left_s(now()) <= 3.0


async def test_R473_an_aborted_move_leaves_the_timers_as_they_were(
    cluster: Cluster, clockwork: Clockwork, stage: Stage
) -> None:
    client = await cluster.client()
    started = now()
    await clockwork.start("_tick", 5.0, 5.0)
    running = asyncio.create_task(clockwork.hold("go"))
    await stage.heard("holding")
    outcome = await client.migrate(clockwork, to="b", on_busy="stay")
    assert outcome.status is MoveStatus.ABORTED
    stage.gate("go").open()
    await running
    await asyncio.sleep(started + 11.0 - now())
    assert [round(tick - started, 1) for tick in await clockwork.seen()] == [5.0, 10.1]


async def test_R473_timers_end_with_the_activation(cluster: Cluster, clockwork: Clockwork, stage: Stage) -> None:
    await clockwork.start("_tick", 1.0, 1.0)
    await stage.heard("tick at a")
    await clockwork.leave()
    await cluster.seen(lambda: not cluster.is_active(clockwork))
    told = len(stage.lines)
    await asyncio.sleep(10.0)
    assert len(stage.lines) == told


async def test_R473_a_callback_that_is_no_method_of_the_grain_stays_behind(
    cluster: Cluster, clockwork: Clockwork
) -> None:
    client = await cluster.client()
    await clockwork.start_loose(1.0, 1.0)
    await asyncio.sleep(2.5)
    assert (await client.migrate(clockwork, to="b")).moved
    seen = await clockwork.seen()
    await asyncio.sleep(5.0)
    assert await clockwork.seen() == seen
    assert len(seen) == 2


@grain(kind="starter")
class Starter(Grain):
    """Starts its timer wherever it is activated, as applications are used to."""

    ticks: list[float] = soft_state(default_factory=list)

    async def on_activate(self, reason: ActivationReason) -> None:
        self.register_timer(self._tick, 10.0, 10.0)

    async def seen(self) -> list[float]:
        return self.ticks

    async def _tick(self) -> None:
        self.ticks.append(now())


async def test_R473_on_activate_after_a_move_finds_the_timer_going_and_makes_no_second_one(
    cluster: Cluster, clockwork: Clockwork
) -> None:
    client = await cluster.client()
    starter = with_hint(client.grain(Starter, "k"), "a")
    await starter.seen()
    started = now()
    for silo in ("b", "c", "a"):
        await asyncio.sleep(3.0)
        assert (await client.migrate(starter, to=silo)).moved
    await asyncio.sleep(started + 21.0 - now())
    assert [round(tick - started) for tick in await starter.seen()] == [10, 20]


@grain(kind="arriving")
class Arriving(Grain):
    """Cannot be activated where it arrives."""

    ticks: ClassVar[list[str]] = []

    async def start(self) -> None:
        self.ticks.clear()
        self.register_timer(self._tick, 5.0, 5.0)

    async def on_activate(self, reason: ActivationReason) -> None:
        if reason is ActivationReason.MIGRATION:
            raise ConnectionError("no database here")

    async def _tick(self) -> None:
        self.ticks.append(self.silo)


async def test_R473_the_timers_of_a_grain_that_was_given_back_go_on(cluster: Cluster, clockwork: Clockwork) -> None:
    client = await cluster.client()
    arriving = with_hint(client.grain(Arriving, "k"), "a")
    await arriving.start()
    outcome = await client.migrate(arriving, to="b")
    assert outcome.status is MoveStatus.ABORTED
    await asyncio.sleep(12.0)
    assert Arriving.ticks == ["a", "a"]


async def test_R474_ticks_do_not_keep_a_grain_alive_unless_they_are_to(cluster: Cluster) -> None:
    await cluster.start("a", kinds=(Pulse,), activation=ActivationSettings(collect_after_s=20.0, collect_every_s=1.0))
    client = await cluster.client()
    pulse, heart = client.grain(Pulse, "pulse"), client.grain(Pulse, "heart")
    await pulse.begin(False)
    await heart.begin(True)
    await asyncio.sleep(60.0)
    assert not cluster.is_active(pulse)
    assert cluster.is_active(heart)


@grain(kind="pulse")
class Pulse(Grain):
    async def begin(self, keep_alive: bool) -> None:
        self.register_timer("_beat", 1.0, 1.0, keep_alive=keep_alive)

    async def begin_wrongly(self, how: str) -> str:
        try:
            match how:
                case "sync":
                    self.register_timer(lambda: None, 1.0)  # type: ignore[arg-type, return-value] # pyright: ignore[reportArgumentType] - a mistake
                case "unknown":
                    self.register_timer("_no_such", 1.0)
                case "never":
                    self.register_timer("_beat", float("inf"))
                case _:
                    self.register_timer("_beat", 1.0, 0.0)
        except (InvalidGrain, ValueError) as error:
            return str(error)
        return "allowed"

    async def _beat(self) -> None:
        """Nothing to do."""


async def test_R473_a_mistaken_timer_is_refused_where_it_is_registered(cluster: Cluster) -> None:
    await cluster.start("a", kinds=(Pulse,))
    client = await cluster.client()
    pulse = client.grain(Pulse, "k")
    assert "is not async" in await pulse.begin_wrongly("sync")
    assert "no async method '_no_such'" in await pulse.begin_wrongly("unknown")
    assert "due_s=inf" in await pulse.begin_wrongly("never")
    assert "period_s=0.0" in await pulse.begin_wrongly("no period")
