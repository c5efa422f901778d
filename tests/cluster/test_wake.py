"""A grain that has no place for a while has one as soon as there is one, whoever calls it and when. R-201 to R-225."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest

from silo.directory.errors import (
    ActivationFailed,
    DirectoryUnavailable,
    GrainMoved,
    GrainUnplaceable,
    HandshakeRefused,
    MembershipUnavailable,
    NoGateway,
    NotExecuted,
    OutcomeUnknown,
    SiloUnavailable,
    StorageUnavailable,
    StoredStateUnreadable,
)
from silo.grain import Grain, grain
from silo.host import Silo
from silo.messaging.greeting import RefusalCode
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.placement.decision import Decision
from silo.reference import grain_id, with_timeout
from silo.routing.limits import RoutingLimits
from silo.testing.network import MemoryTransport
from tests.cluster.clusters import Cluster, MemoryStand
from tests.cluster.grains import Ledger, Witness
from tests.cluster.mortal import MortalCluster, simulated
from tests.cluster.stage import Stage, gate, say
from tests.support.late_rows import in_a_task

AT_ONCE_S = 0.05
LONGEST_PAUSE_S = 1.5 * RoutingLimits().retry_pause_last_s


def counted(silo: Silo, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the silo tries to place a grain, from now on."""
    placement = silo.runtime.placement
    choose = placement.choose
    tried: list[float] = []

    def count(*arguments: object, **options: object) -> Decision:
        tried.append(asyncio.get_running_loop().time())
        return choose(*arguments, **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - passed on

    monkeypatch.setattr(placement, "choose", count)
    return tried


async def failed(call: Awaitable[object]) -> NotExecuted:
    """What the call fails with; it has not run."""
    with pytest.raises(NotExecuted) as raised:
        await call
    return raised.value


async def test_R201_a_call_for_a_grain_that_waits_for_its_next_try_is_a_try_at_once_and_a_burst_of_them_is_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await cluster.start("a", kinds=(Witness,))
    loop = asyncio.get_running_loop()
    tried = counted(a, monkeypatch)
    waiting = asyncio.create_task(failed(with_timeout(a.grain(Ledger, "k"), 60.0).read()))
    await asyncio.sleep(20.0)  # by now the pauses are as long as they get
    limits = RoutingLimits()
    for _ in range(10):
        before = len(tried)
        await cluster.seen(lambda: len(tried) > before)  # noqa: B023 - awaited here
        await asyncio.sleep(limits.call_wakes_every_s)
        if loop.time() - tried[-1] < limits.call_wakes_every_s:
            continue  # it was just due
        before, now = len(tried), loop.time()
        burst = [asyncio.create_task(failed(with_timeout(a.grain(Ledger, "k"), 0.4).read())) for _ in range(100)]
        await asyncio.sleep(AT_ONCE_S)
        assert len(tried) == before + 1
        assert tried[-1] - now < AT_ONCE_S
        await asyncio.gather(*burst)
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_R202_R204_R225_all_that_waits_is_placed_at_once_when_a_fitting_silo_joins_whatever_came_before(
    cluster: Cluster,
) -> None:
    (a,) = await cluster.start("a", kinds=(Witness,))
    loop = asyncio.get_running_loop()
    answered: list[float] = []

    async def call(key: str, timeout_s: float) -> None:
        try:
            await with_timeout(a.grain(Ledger, key), timeout_s).read()
        except NotExecuted:
            return
        answered.append(loop.time())

    calls = [asyncio.create_task(call(f"k{number}", 120.0)) for number in range(50)]
    await asyncio.sleep(10.0)
    await cluster.start("other", kinds=(Witness,))  # fits none of them
    others = [asyncio.create_task(call(f"k{number}", 2.0)) for number in range(50)]
    await asyncio.gather(*others)
    assert answered == []
    await cluster.start("b", kinds=(Ledger,))
    joined = loop.time()
    await asyncio.gather(*calls)
    assert len(answered) == 50
    assert max(answered) - joined < AT_ONCE_S


async def test_R202_what_comes_for_one_grain_is_not_lost_because_another_one_is_looked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One grain's question to the directory fails late, after a silo has joined, while others are asked about."""
    stand = cluster.stand
    assert isinstance(stand, MemoryStand)
    (a,) = await cluster.start("a", kinds=(Witness,))
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(with_timeout(a.grain(Ledger, "slow"), 60.0).read())
    await asyncio.sleep(15.0)
    registrar = a.runtime.registrar
    look_up = registrar.look_up
    asked, answers = asyncio.Event(), asyncio.Event()

    async def late_failure(grain: object) -> None:
        asked.set()
        await answers.wait()
        raise DirectoryUnavailable("its answer was lost")

    monkeypatch.setattr(registrar, "look_up", in_a_task(late_failure))
    await asked.wait()
    monkeypatch.setattr(registrar, "look_up", look_up)
    await cluster.start("b", kinds=(Ledger,))
    assert await a.grain(Ledger, "quick").read() == []
    before = loop.time()
    answers.set()
    assert await waiting == []
    assert loop.time() - before < AT_ONCE_S


async def test_R215_a_call_that_nobody_can_place_ends_in_time_typed_and_says_when_to_try_again(
    cluster: Cluster,
) -> None:
    await cluster.start("a", kinds=(Witness,))
    client = await cluster.client()
    loop = asyncio.get_running_loop()
    began = loop.time()
    error = await failed(with_timeout(client.grain(Ledger, "k"), 3.0).read())
    assert isinstance(error, GrainUnplaceable)
    assert loop.time() - began < 3.0 + 1.0
    assert error.retry_after_s is not None
    assert 0.0 < error.retry_after_s <= LONGEST_PAUSE_S


async def test_R218_what_nobody_waits_for_any_more_is_let_go_and_the_next_call_tries_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await cluster.start("a", kinds=(Witness,))
    tried = counted(a, monkeypatch)
    ledger = a.grain(Ledger, "k")
    await failed(with_timeout(ledger, 10.0).read())
    await asyncio.sleep(LONGEST_PAUSE_S)
    assert not a.runtime.router.is_resolving(grain_id(ledger))
    before, now = len(tried), asyncio.get_running_loop().time()
    await asyncio.sleep(30.0)
    assert len(tried) == before  # nobody asks on behalf of nobody
    now = asyncio.get_running_loop().time()
    calling = asyncio.create_task(failed(with_timeout(ledger, 0.2).read()))
    await asyncio.sleep(0.1)
    assert len(tried) == before + 2  # at once, and after the first, short pause
    assert tried[before] - now < AT_ONCE_S
    await calling


@grain(kind="sleeper")
class Sleeper(Grain):
    """Takes as long to wake up and to fall asleep as the test wants."""

    async def on_activate(self, reason: ActivationReason) -> None:
        say("wakes")
        if self.key == "slow to wake":
            await gate("wakes")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say("falls asleep")
        await gate("falls asleep")

    async def sleep(self) -> None:
        self.deactivate()

    async def touch(self) -> str:
        return self.silo


async def test_R219_R220_a_call_for_a_grain_that_is_falling_asleep_wakes_it_as_soon_as_it_sleeps(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", kinds=(Sleeper,))
    client = await cluster.client()
    sleeper = client.grain(Sleeper, "k")
    await sleeper.sleep()
    await stage.heard("falls asleep")
    calling = asyncio.create_task(sleeper.touch())
    await asyncio.sleep(5.0)
    assert stage.lines == ["wakes", "falls asleep"]
    assert not calling.done()
    before = asyncio.get_running_loop().time()
    stage.gate("falls asleep").open()
    assert await calling == "a"
    assert asyncio.get_running_loop().time() - before < AT_ONCE_S
    assert stage.lines == ["wakes", "falls asleep", "wakes"]


async def test_R221_calls_for_a_grain_that_is_waking_join_that_and_wake_nothing_else(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Sleeper,))
    client = await cluster.client()
    sleeper = client.grain(Sleeper, "slow to wake")
    calls = [asyncio.create_task(sleeper.touch())]
    await stage.heard("wakes")
    calls += [asyncio.create_task(sleeper.touch()) for _ in range(20)]
    calls += [asyncio.create_task(silo.grain(Sleeper, "slow to wake").touch()) for silo in cluster.silos.values()]
    await asyncio.sleep(1.0)
    assert not any(call.done() for call in calls)
    stage.gate("wakes").open()
    assert len({await call for call in calls}) == 1
    assert stage.lines == ["wakes"]


async def test_R222_a_signal_that_changes_nothing_is_logged_with_the_state_and_the_reason(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await cluster.start("a", kinds=(Witness,))
    registrar = a.runtime.registrar
    look_up = registrar.look_up
    asked, answers = asyncio.Event(), asyncio.Event()

    async def slow(grain: object) -> None:
        asked.set()
        await answers.wait()

    monkeypatch.setattr(registrar, "look_up", in_a_task(slow))
    calling = asyncio.create_task(a.grain(Ledger, "k").read())
    await asked.wait()
    calling.cancel()
    await asyncio.wait([calling])
    with caplog.at_level(logging.INFO):
        await cluster.start("b", kinds=(Ledger,))
    monkeypatch.setattr(registrar, "look_up", look_up)
    answers.set()
    lines = [record.getMessage() for record in caplog.records if "signal_ignored" in record.getMessage()]
    assert lines
    assert all(
        part in line for line in lines for part in ("ledger/k", "state=Trying", "signal=Deserted", "a try is under way")
    )


@grain(kind="keeper")
class Keeper(Grain):
    """Keeps a number, in storage."""

    kept: Persistent[int] = persistent()

    async def add(self) -> tuple[int, str | None]:
        self.kept.value += 1
        await self.kept.write()
        return self.kept.value, self.kept.etag

    async def look(self) -> tuple[int, str | None]:
        return self.kept.value, self.kept.etag


async def test_R214_an_outage_and_all_tries_in_it_leave_what_is_stored_as_it_was(cluster: Cluster) -> None:
    stand = cluster.stand
    assert isinstance(stand, MemoryStand)
    await cluster.start("a", kinds=(Witness,))
    await cluster.start("b", kinds=(Keeper,))
    client = await cluster.client()
    keeper = client.grain(Keeper, "k")
    kept = await keeper.add()
    await cluster.kill("b")
    writes = [call for call in stand.storage_calls if call != "read"]
    for _ in range(5):
        assert isinstance(await ended(with_timeout(keeper, 2.0).look()), (NotExecuted, OutcomeUnknown))
    await cluster.start("b2", kinds=(Keeper,))
    assert await keeper.look() == kept
    assert [call for call in stand.storage_calls if call != "read"] == writes


async def test_R223_a_silo_that_stops_while_grains_wait_for_a_place_ends_in_order_and_says_why_to_their_callers(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    (a,) = await cluster.start("a", kinds=(Witness,))
    calls = [asyncio.create_task(failed(with_timeout(a.grain(Ledger, f"k{n}"), 60.0).read())) for n in range(20)]
    await asyncio.sleep(3.0)
    before = asyncio.get_running_loop().time()
    await cluster.stop("a")
    assert asyncio.get_running_loop().time() - before < 5.0
    assert {type(error) for error in await asyncio.gather(*calls)} == {GrainUnplaceable}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@grain(kind="scribe")
class Scribe(Grain):
    """Writes all the time: by a timer, by a task of its own, as it ends, and by a task that nobody knows of."""

    kept: Persistent[int] = persistent()
    left_behind: ClassVar[list[asyncio.Task[None]]] = []

    async def on_activate(self, reason: ActivationReason) -> None:
        self.register_timer(self._tick, 0.01, 0.01)
        self.create_task(self._write_on())
        if reason is ActivationReason.CALL:
            Scribe.left_behind.append(asyncio.create_task(self._write_on()))

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        await self._tick()
        say(f"ends {reason}")

    async def _tick(self) -> None:
        self.kept.value += 1
        await self.kept.write()

    async def _write_on(self) -> None:
        while True:
            await self._tick()
            await asyncio.sleep(0.01)

    async def written(self) -> int:
        return self.kept.value


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
async def test_R223_timers_and_tasks_that_write_to_the_end_neither_fail_a_stop_nor_hide_its_reason(
    cluster: Cluster, stage: Stage, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    Scribe.left_behind.clear()
    (a,) = await cluster.start("a", kinds=(Scribe,))
    scribe = a.grain(Scribe, "k")
    await scribe.written()
    await asyncio.sleep(1.0)
    written = await scribe.written()
    assert written > 50
    if others:
        await cluster.start("b", kinds=(Scribe,))
    before = asyncio.get_running_loop().time()
    await cluster.stop("a")
    assert asyncio.get_running_loop().time() - before < 5.0
    ends = f"ends {'migrating' if others else 'shutting_down'}"
    assert set(stage.lines) == {ends}, "a stray write may put the first try to move it off"
    late = await asyncio.gather(*Scribe.left_behind, return_exceptions=True)
    assert [type(error) for error in late] == [GrainMoved], "what was left behind is told so, and by nothing else"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    (after,) = await cluster.start("c", kinds=(Scribe,))
    assert await after.grain(Scribe, "k").written() >= written


async def test_R224_a_storage_that_is_lost_in_a_drain_is_named_as_what_failed_and_the_silo_stops_all_the_same(
    cluster: Cluster, stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await cluster.start("a", kinds=(Scribe,))
    await a.grain(Scribe, "k").written()

    async def lost(call: str) -> None:
        raise StorageUnavailable("the storage is away")

    assert a.runtime.storage is not None
    monkeypatch.setattr(a.runtime.storage.storage, "_before", lost)
    await cluster.stop("a")
    told = [record for record in caplog.records if "deactivation.hook_failed" in record.getMessage()]
    assert [type(record.exc_info[1]) for record in told if record.exc_info] == [StorageUnavailable]


def test_R224_each_way_of_failing_has_an_error_that_is_no_other() -> None:
    kinds = (
        HandshakeRefused,  # another protocol, cluster or token: `code` says which
        StorageUnavailable,
        DirectoryUnavailable,
        MembershipUnavailable,
        GrainUnplaceable,
        SiloUnavailable,
        NoGateway,
        ActivationFailed,
        StoredStateUnreadable,
        GrainMoved,
    )
    assert not [(one, other) for one in kinds for other in kinds if one is not other and issubclass(one, other)]
    codes = [str(code) for code in RefusalCode]
    assert len(set(codes)) == len(codes)


# --------------------------------------------------------------------------------------------- silos that do not answer


def dials_to(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When somebody dials there, from now on."""
    dial: Callable[[MemoryTransport, str], Awaitable[object]] = MemoryTransport.dial
    dials: list[float] = []

    async def count(transport: MemoryTransport, to: str) -> object:
        if to == endpoint:
            dials.append(asyncio.get_running_loop().time())
        return await dial(transport, to)

    monkeypatch.setattr(MemoryTransport, "dial", count)
    return dials


@simulated
async def test_S022_S081_however_many_calls_come_a_silo_that_does_not_answer_is_dialled_a_few_times_a_second(
    mortal: MortalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 calls a second for a silo that was killed, on whose endpoint another incarnation has started."""
    a, b, _ = await mortal.start("a", "b", "c", kinds=(Ledger,))
    keys = [str(number) for number in range(20)]
    for key in keys:
        await a.grain(Ledger, key).write("first")
    loop = asyncio.get_running_loop()
    dead = b.address
    mortal.kill_now("b")
    await mortal.start_one("b", kinds=(Ledger,))
    dials = dials_to(b.endpoint, monkeypatch)
    began = loop.time()
    calls: list[asyncio.Task[object]] = []
    while not a.view.is_dead(dead):
        calls.append(asyncio.create_task(ended(with_timeout(a.grain(Ledger, keys[len(calls) % 20]), 60.0).write("x"))))
        await asyncio.sleep(0.005)
    took_s = loop.time() - began
    results = await asyncio.gather(*calls)
    assert took_s > 3.0
    assert len(calls) > 500
    assert len(dials) < 10 * took_s  # by the two that are left, to either incarnation
    answered = [result for result in results if isinstance(result, int)]
    assert len(answered) > 0.98 * len(calls)


async def ended(call: Awaitable[object]) -> object:
    """What the call answers, or the error that it ends with."""
    return (await asyncio.gather(call, return_exceptions=True))[0]
