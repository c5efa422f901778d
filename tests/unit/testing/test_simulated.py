"""A scenario on a simulated cluster: what a test may do to it, what is judged, and how it is repeated."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from silo.activation.activation import Activation
from silo.client import Client
from silo.directory.errors import Closed, DirectoryUnavailable, NotExecuted, OutcomeUnknown
from silo.directory.turn_right import LeasedRight
from silo.reference import with_timeout
from silo.routing.call import Call
from silo.testing import (
    FLAKY,
    WAN,
    Cluster,
    NotMoved,
    PromiseBroken,
    SimulationFailure,
    run_simulated,
)
from silo.testing.witness import What
from tests.unit.testing.kit_grains import Postman, Room, Tally

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _no_seed_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SILO_TEST_SEED", raising=False)


async def ended(call: Awaitable[object]) -> object:
    """The value of a call, or why it has none."""
    try:
        return await call
    except (NotExecuted, OutcomeUnknown) as error:
        return error


def test_a_grain_is_moved_and_keeps_its_state() -> None:
    async def scenario(cluster: Cluster) -> str:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        to = cluster.elsewhere(room)
        outcome = await cluster.migrate(room, to=to)
        assert (outcome.moved, cluster.home(room)) == (True, to)
        assert await room.players() == ["ada"]
        return to

    run = run_simulated(scenario, kinds=[Room], seed=7)
    assert run.result in ("silo-1", "silo-2", "silo-3")
    assert [event.because for event in run.events if event.what is What.OPENED][:2] == ["call", "migration"]


def test_a_move_that_fails_fails_the_test_with_the_reason() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        await cluster.migrate(room, to="silo-9")

    with pytest.raises(NotMoved, match="no living silo is called silo-9"):
        run_simulated(scenario, kinds=[Room])


def test_time_passes_by_itself_and_costs_none() -> None:
    async def scenario(cluster: Cluster) -> float:
        before = cluster.now
        await asyncio.sleep(1000)
        return cluster.now - before

    assert run_simulated(scenario, kinds=[Room], silos=1, seconds_max=7200).result == pytest.approx(1000)


def test_a_killed_silo_takes_its_soft_state_along_and_its_grains_come_back_elsewhere() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        gone = cluster.home(room)
        cluster.kill(gone)
        assert gone not in cluster.silos
        await ended(room.players())  # it may have been on its way to the silo that is gone
        assert await room.players() == []
        assert cluster.home(room) != gone
        assert await cluster.start(gone) == gone
        await cluster.migrate(room, to=gone)

    run_simulated(scenario, kinds=[Room], seeds=3)


def test_a_paused_silo_is_fenced_and_serves_nothing_that_another_has_taken_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        home = cluster.home(room)
        cluster.pause(home)
        await asyncio.sleep(15)
        assert await room.enter("grace") == 1
        cluster.resume(home)
        await asyncio.sleep(15)
        assert await room.players() == ["grace"]

    run_simulated(scenario, kinds=[Room], seeds=3)


def test_a_pause_shorter_than_the_lease_costs_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        home = cluster.home(room)
        cluster.pause(home)
        call = asyncio.create_task(room.enter("grace"))
        await asyncio.sleep(1)
        assert not call.done()
        cluster.resume(home)
        assert await call == 2

    run_simulated(scenario, kinds=[Room])


def test_silos_join_leave_and_restart_in_the_middle() -> None:
    async def scenario(cluster: Cluster) -> None:
        rooms = [cluster.client.grain(Room, str(number)) for number in range(6)]
        for room in rooms:
            await room.enter("ada")
        assert await cluster.start() == "silo-3"
        await cluster.restart("silo-1")
        await cluster.stop("silo-2")
        assert sorted(cluster.silos) == ["silo-1", "silo-3"]
        assert [await room.players() for room in rooms] == [["ada"]] * 6

    run_simulated(scenario, kinds=[Room], silos=2, seeds=3)


def test_a_partition_may_be_of_one_direction_only() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        cluster.partition(cluster.home(room), "client", one_way=True)
        answer = await ended(with_timeout(room, 1.0).enter("grace"))
        assert isinstance(answer, (NotExecuted, OutcomeUnknown))
        cluster.heal()
        assert "grace" in await room.players()  # the call came through; its answer did not

    run_simulated(scenario, kinds=[Room], silos=1)


def test_an_isolated_silo_is_replaced() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        alone = cluster.home(room)
        cluster.isolate(alone)
        assert await ended(room.enter("grace")) is not None
        await asyncio.sleep(10)
        assert await room.enter("grace") >= 1
        cluster.heal(alone)
        await asyncio.sleep(10)
        assert await room.enter("grace") >= 2

    run_simulated(scenario, kinds=[Room], seeds=3)


def test_without_redis_what_is_active_goes_on_and_nothing_new_begins() -> None:
    async def scenario(cluster: Cluster) -> None:
        room, other = cluster.client.grain(Room, "lobby"), cluster.client.grain(Room, "attic")
        await room.enter("ada")
        cluster.redis_down()
        assert await room.enter("grace") == 2
        with pytest.raises((DirectoryUnavailable, NotExecuted)):
            await with_timeout(other, 2.0).enter("alan")
        cluster.redis_up()
        assert await other.enter("alan") == 1

    run_simulated(scenario, kinds=[Room], silos=1)


def test_redis_may_lose_answers_and_no_call_runs_twice() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.redis_unreliable(loses_answers=0.3)
        for number in range(10):
            assert await ended(cluster.client.grain(Room, str(number)).enter("ada")) is not None

    run_simulated(scenario, kinds=[Room], seeds=3)


@pytest.mark.parametrize("network", [WAN, FLAKY], ids=["wan", "flaky"])
def test_networks_are_slow_or_break_and_calls_keep_their_order(network: object) -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        calls = [asyncio.create_task(room.enter(str(number))) for number in range(20)]
        await cluster.client.migrate(room)
        answers = await asyncio.gather(*map(ended, calls))
        assert [answer for answer in answers if isinstance(answer, int)] == sorted(
            answer for answer in answers if isinstance(answer, int)
        )

    assert network in (WAN, FLAKY)
    run_simulated(scenario, kinds=[Room], network=WAN if network is WAN else FLAKY, seeds=3)


def test_the_way_between_two_can_be_made_slow_and_broken() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        cluster.slow("client", cluster.home(room), (0.2, 0.2))
        before = cluster.now
        await room.enter("grace")
        assert cluster.now - before >= 0.4
        cluster.slow("client", cluster.home(room), None)
        assert cluster.reset("client") == 1
        assert await room.enter("alan") == 3

    run_simulated(scenario, kinds=[Room], silos=1)


def test_further_clients_come_and_are_closed_at_the_end() -> None:
    async def scenario(cluster: Cluster) -> Client:
        other = await cluster.connect("phone")
        assert await other.grain(Room, "lobby").enter("ada") == 1
        cluster.partition("phone", "silo-1")
        assert await cluster.client.grain(Room, "lobby").players() == ["ada"]
        cluster.heal("phone")
        return other

    client = run_simulated(scenario, kinds=[Room], silos=1).result
    with pytest.raises(NotExecuted, match="another event loop"):
        asyncio.run(_call(client))
    with pytest.raises(Closed, match="closed"):
        asyncio.run(_ask(client))


async def _ask(client: Client) -> None:
    await client.management.status()


async def _call(client: Client) -> None:
    await client.grain(Room, "lobby").players()


# ------------------------------------------------------------------------------------------------------ what is judged


def _busy(keys: int = 3) -> Callable[[Cluster], Awaitable[None]]:
    """Calls of all sorts, between clients and grains, while grains move."""

    async def scenario(cluster: Cluster) -> None:
        rooms = [cluster.client.grain(Room, str(key)) for key in range(keys)]
        postman = cluster.client.grain(Postman, "p")
        for each in range(6):
            calls = [room.enter(f"{each}.{number}", 0.01) for room in rooms for number in range(4)]
            calls += [postman.deliver(str(key), ["a", "b"]) for key in range(keys)]
            await rooms[0].greet(str(each))
            moves = cluster.client.migrate_many([*rooms, postman])
            await asyncio.gather(moves, *(room.players() for room in rooms), *calls)

    return scenario


def test_any_grains_are_checked_and_sound_ones_pass() -> None:
    run = run_simulated(_busy(), kinds=[Room, Postman], seeds=4)
    kinds = {event.what for event in run.events}
    assert {What.OPENED, What.TURN_STARTED, What.TURN_ENDED, What.CALL_SENT, What.CALL_ENDED} <= kinds
    callers = {event.caller.split("-")[0] for event in run.events if event.what is What.CALL_SENT}
    assert callers == {"client", "postman/p"}


def test_what_a_grain_raises_breaks_no_promise() -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(ValueError, match="the room says no"):
            await cluster.client.grain(Room, "lobby").fail()

    run_simulated(scenario, kinds=[Room])


def test_calls_that_a_move_turns_around_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    abandon = Activation.abandon

    def turned(activation: Activation) -> list[Call]:
        return abandon(activation)[::-1]

    monkeypatch.setattr(Activation, "abandon", turned)
    with pytest.raises(PromiseBroken, match="order kept") as raised:
        run_simulated(_busy(), kinds=[Room, Postman], seeds=10)
    assert {violation.rule for violation in raised.value.violations} == {"order kept"}


def test_two_activations_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_held(right: LeasedRight) -> bool:
        return not right.is_resigned

    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        home = cluster.home(room)
        cluster.partition(home, "redis")
        for other in cluster.silos:
            if other != home:
                cluster.partition(home, other)
                cluster.partition("client", other)
        phone = await cluster.connect("phone")
        cluster.partition("phone", home)
        async with asyncio.TaskGroup() as group:
            for _ in range(15):
                group.create_task(ended(with_timeout(room, 1.0).enter("grace")))
                group.create_task(ended(with_timeout(phone.grain(Room, "lobby"), 5.0).enter("alan")))
                await asyncio.sleep(1)

    run_simulated(scenario, kinds=[Room])  # sound while silos are fenced
    monkeypatch.setattr(LeasedRight, "is_held", is_held)
    with pytest.raises(PromiseBroken, match="one activation"):
        run_simulated(scenario, kinds=[Room])


def test_tasks_that_are_left_behind_are_found() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.loop.create_task(asyncio.sleep(1e6), name="forgotten")

    with pytest.raises(PromiseBroken, match="no leak: forgotten"):
        run_simulated(scenario, kinds=[Room])


def test_a_scenario_that_waits_for_ever_fails() -> None:
    async def scenario(_cluster: Cluster) -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationFailure, match="passed"):
        run_simulated(scenario, kinds=[Room], silos=1, seconds_max=100)


# --------------------------------------------------------------------------------------------------------------- seeds


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    first, second, other = (run_simulated(_busy(), kinds=[Room, Postman], seed=seed) for seed in (5, 5, 6))
    assert (first.trace, first.steps, first.virtual_s) == (second.trace, second.steps, second.virtual_s)
    assert first.events == second.events
    assert first.trace != other.trace


def test_a_failure_says_its_seed_and_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        draw = cluster.rng.random()
        seen.append(draw)
        assert draw < 0.5, "drawn too high"

    with pytest.raises(AssertionError, match="drawn too high") as raised:
        run_simulated(scenario, kinds=[Room], silos=1, seeds=50)
    (note,) = raised.value.__notes__
    named = re.search(r"SILO_TEST_SEED=(\d+)", note)
    assert named is not None
    failed = seen[-1]
    monkeypatch.setenv("SILO_TEST_SEED", named[1])
    with pytest.raises(AssertionError, match="drawn too high"):
        run_simulated(scenario, kinds=[Room], silos=1, seeds=50)
    assert seen[-1] == failed


def test_a_seed_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_TEST_SEED", "seven")
    with pytest.raises(ValueError, match="SILO_TEST_SEED='seven': a whole number is wanted"):
        run_simulated(_busy(), kinds=[Room, Postman])


def test_a_seed_repeats_in_another_process_whatever_its_hashes_are() -> None:
    code = (
        "from silo.testing import run_simulated\n"
        "from tests.unit.testing.kit_grains import Postman, Room\n"
        "from tests.unit.testing.test_simulated import _busy\n"
        "print(run_simulated(_busy(), kinds=[Room, Postman], seed=5).trace)\n"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hashes in ("0", "1", "2")
    }
    assert len(traces) == 1


def test_silos_are_set_up_as_the_test_says() -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(ValueError, match="silo-1 runs already"):
            await cluster.start("silo-1")
        with pytest.raises(ValueError, match="no silo called 'attic' runs; these do: silo-1"):
            cluster.kill("attic")
        assert await cluster.start("attic", kinds=[Tally], meta={"zone": "a"}) == "attic"
        assert await cluster.client.grain(Tally, "t").add(1) == 1
        assert cluster.home(cluster.client.grain(Tally, "t")) == "attic"
        assert {silo.settings.meta["zone"] for silo in cluster.hosts().values()} == {"a", "b"}

    run_simulated(scenario, kinds=[Room], silos=1, settings={"meta": {"zone": "b"}})
    with pytest.raises(ValueError, match="seeds=0"):
        run_simulated(scenario, kinds=[Room], seeds=0)
