"""How activations begin and end without a move: on demand, idle, by their own wish. R-455, R-474."""

from __future__ import annotations

import asyncio
import math

import pytest

from silo.directory.errors import ActivationFailed
from silo.grain import Grain, grain, soft_state
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.reference import with_hint
from silo.settings import ActivationSettings, SiloSettings
from tests.cluster.clusters import Cluster
from tests.cluster.stage import Stage, gate, say

LOOKED_FOR = ActivationSettings(collect_every_s=1.0)


class _Sleeper(Grain):
    """Says when it comes and goes."""

    calls: int = soft_state(default=0)

    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"{self.key} on {self.silo}: {reason}")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"{self.key} off: {reason}")

    async def touch(self) -> int:
        self.calls += 1
        return self.calls

    async def work(self, gate_name: str) -> int:
        say(f"{self.key} works")
        await gate(gate_name)
        return await self.touch()

    async def leave(self) -> None:
        self.deactivate()

    async def leave_and_work(self, gate_name: str) -> str:
        self.deactivate()
        await self.work(gate_name)
        return "worked on"


@grain(kind="sleeper", collect_after=10.0)
class Sleeper(_Sleeper):
    pass


@grain(kind="ordinary")
class Ordinary(_Sleeper):
    pass


@grain(kind="sleepless", collect_after=math.inf)
class Sleepless(_Sleeper):
    pass


@grain(kind="busy", reentrant=True)
class Busy(_Sleeper):
    pass


@pytest.mark.in_memory
async def test_R474_an_idle_grain_is_collected_and_its_next_call_starts_it_anew(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Sleeper,), activation=LOOKED_FOR)
    client = await cluster.client()
    sleeper = client.grain(Sleeper, "k")
    await sleeper.touch()
    await asyncio.sleep(9.0)
    assert await sleeper.touch() == 2  # a call begins its time again
    await asyncio.sleep(9.0)
    assert cluster.is_active(sleeper)
    await asyncio.sleep(2.5)
    assert not cluster.is_active(sleeper)
    assert await cluster.entry(sleeper) is None
    assert stage.lines[1:] == ["k off: idle"]
    assert await sleeper.touch() == 1


@grain(kind="slow-to-end", collect_after=10.0)
class SlowToEnd(_Sleeper):
    """Ends when it is let."""

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        await super().on_deactivate(reason)
        await gate(self.key)


async def _sleepers(cluster: Cluster, count: int) -> list[SlowToEnd]:
    limits = ActivationSettings(collect_every_s=1.0, collect_in_flight_max=2, deactivation_timeout_s=100.0)
    await cluster.start("a", kinds=(SlowToEnd,), activation=limits)
    client = await cluster.client()
    sleepers = [client.grain(SlowToEnd, str(number)) for number in range(count)]
    await asyncio.gather(*(sleeper.touch() for sleeper in sleepers))
    return sleepers


def _ending(stage: Stage) -> list[str]:
    return [line.split()[0] for line in stage.lines if line.endswith("off: idle")]


@pytest.mark.in_memory
async def test_R474_of_many_idle_grains_so_many_end_at_a_time_and_the_next_as_one_has(
    cluster: Cluster, stage: Stage
) -> None:
    sleepers = await _sleepers(cluster, 4)
    await asyncio.sleep(11.5)
    assert _ending(stage) == ["0", "1"]
    stage.gate("1").open()
    await asyncio.sleep(0.5)
    assert _ending(stage) == ["0", "1", "2"]
    assert await sleepers[3].touch() == 2  # it waits for its end, and is used again before that
    stage.gate("0").open()
    stage.gate("2").open()
    await asyncio.sleep(5.0)
    assert [cluster.is_active(each) for each in sleepers] == [False, False, False, True]
    assert _ending(stage) == ["0", "1", "2"]
    stage.gate("3").open()


@pytest.mark.in_memory
async def test_R474_grains_that_are_long_in_ending_keep_no_other_from_it(cluster: Cluster, stage: Stage) -> None:
    sleepers = await _sleepers(cluster, 3)
    await asyncio.sleep(13.0)
    assert _ending(stage) == ["0", "1", "2"]
    for sleeper in sleepers:
        stage.gate(sleeper.key).open()


@pytest.mark.in_memory
async def test_R474_a_grain_that_works_is_not_idle(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", kinds=(Sleeper,), activation=LOOKED_FOR)
    client = await cluster.client()
    sleeper = client.grain(Sleeper, "k")
    working = asyncio.create_task(sleeper.work("go"))
    await asyncio.sleep(25.0)
    assert cluster.is_active(sleeper)
    stage.gate("go").open()
    assert await working == 1
    await asyncio.sleep(8.0)
    assert cluster.is_active(sleeper)


@pytest.mark.in_memory
async def test_R474_the_clock_of_an_idle_grain_goes_on_over_a_move(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Sleeper,), activation=LOOKED_FOR)
    client = await cluster.client()
    sleeper = with_hint(client.grain(Sleeper, "k"), "a")
    await sleeper.touch()
    await asyncio.sleep(8.0)
    assert (await client.migrate(sleeper, to="b")).moved
    await asyncio.sleep(1.0)
    assert cluster.home(sleeper) == "b"
    await asyncio.sleep(2.5)  # 11.5 s since its last call
    assert not cluster.is_active(sleeper)
    assert stage.lines[-1] == "k off: idle"


@pytest.mark.in_memory
async def test_R474_a_kind_that_says_so_is_never_collected_and_the_default_is_a_quarter_of_an_hour(
    cluster: Cluster,
) -> None:
    await cluster.start("a", kinds=(Sleepless, Ordinary))
    client = await cluster.client()
    sleepless, ordinary = client.grain(Sleepless, "k"), client.grain(Ordinary, "k")
    await sleepless.touch()
    await ordinary.touch()
    await asyncio.sleep(890.0)
    assert cluster.is_active(ordinary)
    await asyncio.sleep(45.0)
    assert not cluster.is_active(ordinary)
    await asyncio.sleep(1000.0)
    assert cluster.is_active(sleepless)


def test_R474_the_defaults_are_those_that_users_of_orleans_know() -> None:
    defaults = SiloSettings()
    assert defaults.activation.collect_after_s == 15 * 60
    assert defaults.activation.activation_timeout_s == 30
    assert defaults.activation.deactivation_timeout_s == 30
    assert defaults.calls.call_timeout_s == 30
    assert defaults.calls.hops_max == 4  # Orleans forwards twice; moves while queued cost none


@pytest.mark.real
async def test_R455_the_next_call_after_a_deactivation_goes_to_a_new_activation_placed_anew(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Ordinary,))
    client = await cluster.client()
    ordinary = client.grain(Ordinary, "k")
    await with_hint(ordinary, "a").touch()
    working = asyncio.create_task(ordinary.leave_and_work("go"))
    await stage.heard("k works")
    queued = asyncio.create_task(with_hint(ordinary, "b").touch())
    await cluster.queued(ordinary, 1)
    stage.gate("go").open()
    assert await working == "worked on"  # the turn that asked for it ends as ever
    assert await queued == 1
    assert cluster.home(ordinary) == "b"
    assert stage.lines == ["k on a: call", "k works", "k off: application", "k on b: call"]


@pytest.mark.real
async def test_R455_in_a_reentrant_grain_all_that_runs_ends_and_what_comes_after_waits_for_the_new_activation(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Busy,))
    client = await cluster.client()
    busy = client.grain(Busy, "k")
    await with_hint(busy, "a").touch()
    working = [asyncio.create_task(busy.work(f"go {number}")) for number in range(2)]
    await stage.heard("k works", times=2)
    leaving = asyncio.create_task(busy.leave_and_work("go last"))
    await stage.heard("k works", times=3)
    for name in ("go last", "go 0"):
        stage.gate(name).open()
    assert await leaving == "worked on"
    stage.gate("go 1").open()
    await asyncio.gather(*working)
    await stage.heard("k off: application")
    assert await busy.touch() == 1
    assert stage.lines.index("k off: application") == 4


@pytest.mark.real
async def test_a_deactivated_grain_is_placed_anew_wherever_its_next_caller_wishes(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ordinary,))
    client = await cluster.client()
    ordinary = client.grain(Ordinary, "k")
    for silo in ("a", "b", "a"):
        await with_hint(ordinary, silo).touch()
        assert cluster.home(ordinary) == silo
        await ordinary.leave()
        await cluster.seen(lambda: not cluster.is_active(ordinary))


@grain(kind="doomed")
class Doomed(Grain):
    """Fails to start, until it is told otherwise; how is in its key."""

    healthy = False

    def __init__(self) -> None:
        if self.key == "constructor" and not Doomed.healthy:
            raise ValueError("no constructor")

    async def on_activate(self) -> None:
        if self.key == "hook" and not Doomed.healthy:
            raise ValueError("no hook")
        if self.key == "slow" and not Doomed.healthy:
            await gate("never")

    async def touch(self) -> str:
        return self.key


@pytest.mark.real
@pytest.mark.parametrize("key", ["constructor", "hook"])
async def test_a_grain_that_cannot_start_fails_its_calls_with_the_cause_and_the_next_call_tries_again(
    cluster: Cluster, key: str
) -> None:
    await cluster.start("a", "b", kinds=(Doomed,))
    client = await cluster.client()
    doomed = client.grain(Doomed, key)
    Doomed.healthy = False
    for _ in range(2):
        with pytest.raises(ActivationFailed, match=f"ValueError: no {key}"):
            await doomed.touch()
    assert await cluster.entry(doomed) is None
    Doomed.healthy = True
    assert await doomed.touch() == key


@pytest.mark.real
async def test_a_grain_whose_start_takes_too_long_fails_its_calls(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Doomed,), activation=ActivationSettings(activation_timeout_s=0.2))
    client = await cluster.client()
    Doomed.healthy = False
    with pytest.raises(ActivationFailed, match="TimeoutError"):
        await client.grain(Doomed, "slow").touch()


@pytest.mark.real
async def test_calls_that_arrive_while_a_grain_starts_wait_and_run_in_order(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Late,))
    client = await cluster.client()
    late = client.grain(Late, "k")
    calls = [asyncio.create_task(late.add(number)) for number in range(10)]
    await stage.heard("starting")
    stage.gate("started").open()
    assert await asyncio.gather(*calls) == [list(range(number + 1)) for number in range(10)]
    assert stage.lines == ["starting"]


@grain(kind="late")
class Late(Grain):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    async def on_activate(self) -> None:
        say("starting")
        await gate("started")

    async def add(self, number: int) -> list[int]:
        self.numbers.append(number)
        return self.numbers
