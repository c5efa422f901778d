"""Fault points: silos that die and grains that fail at a named step of a move, and what becomes of grain and calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from silo.directory.errors import ActivationFailed, NotExecuted, OutcomeUnknown
from silo.migration.outcome import MigrationOutcome, MoveStatus
from silo.testing import Cluster, InjectedFault, Place, SimulationFailure, Step, StepNotReached, run_simulated
from silo.testing.steps import BY_ORDER, FAILING
from tests.unit.testing.kit_grains import Lodge, Room

AT_THE_SOURCE = (Step.ASK, Step.DRAIN, Step.DEACTIVATE, Step.DEHYDRATE, Step.OFFER)
"""The steps up to which the grain's state is at its source alone."""
ARRIVING = (Step.REHYDRATE, Step.COMMIT)
"""Those in which both have it, and the entry is still the source's."""
COMMITTED = (Step.WRITTEN, Step.COMMITTED, Step.ACTIVATE, Step.OPEN, Step.MOVED, Step.RELEASE)
"""From the commit on the grain is the target's: its state is safe from the source's death; and from the target's as
long as the source has not let its instance go. At `moved` the target's word that it is open is on its way already."""


async def ended(call: Awaitable[object]) -> object:
    """The value of a call, or why it has none."""
    try:
        return await call
    except (NotExecuted, OutcomeUnknown) as error:
        return error


async def lodge_at_1(cluster: Cluster) -> Lodge:
    """A lodge at silo-1, with one guest."""
    lodge = cluster.client.grain(Lodge, "lodge")
    await lodge.enter("ada")
    if cluster.home(lodge) != "silo-1":
        await cluster.migrate(lodge, to="silo-1")
    return lodge


async def move_to_2(cluster: Cluster, lodge: Lodge) -> object:
    """Move it to silo-2 while others come; what became of the move, once every call has ended."""
    guests = [asyncio.create_task(ended(lodge.enter(f"guest-{number}"))) for number in range(3)]
    outcome = await ended(cluster.client.migrate(lodge, to="silo-2"))
    await asyncio.wait(guests)
    return outcome


@pytest.mark.parametrize("victim", ["source", "target"])
@pytest.mark.parametrize("step", [*AT_THE_SOURCE, *ARRIVING, *COMMITTED])
def test_R430_whoever_dies_at_whatever_step_of_a_move_every_call_ends_and_the_grain_is_served(
    step: Step, victim: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        lodge = await lodge_at_1(cluster)
        planned = cluster.when(step, lambda at: cluster.kill(at.source if victim == "source" else at.target))
        await move_to_2(cluster, lodge)
        (place,) = planned.places
        assert (place.source, place.target) == ("silo-1", "silo-2")
        await asyncio.sleep(10)
        inside = await lodge.players()
        lost = (Step.RELEASE,) if victim == "target" else AT_THE_SOURCE
        if (step, victim) != (Step.MOVED, "target"):  # whose last word, that it has opened, may or may not have left
            assert ("ada" in inside) == (step not in lost)
        assert len(cluster.live(lodge)) == 1

    run_simulated(scenario, kinds=[Lodge])


@pytest.mark.parametrize("seed", range(8))
def test_a_grain_that_is_taken_back_from_a_target_that_opened_and_died_is_no_second_activation(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        lodge = await lodge_at_1(cluster)
        cluster.when(Step.MOVED, lambda at: cluster.kill(at.target))
        await move_to_2(cluster, lodge)
        await asyncio.sleep(10)
        await lodge.players()

    run_simulated(scenario, kinds=[Lodge], seed=seed)


@pytest.mark.parametrize("step", [Step.DRAIN, Step.DEACTIVATE, Step.DEHYDRATE, Step.REHYDRATE, Step.ACTIVATE])
def test_a_grain_that_fails_at_a_step_of_its_move_keeps_its_state(step: Step) -> None:
    async def scenario(cluster: Cluster) -> object:
        lodge = await lodge_at_1(cluster)
        cluster.fail(step, grain=lodge)
        outcome = await move_to_2(cluster, lodge)
        assert "ada" in await lodge.players()
        return outcome

    outcome = run_simulated(scenario, kinds=[Lodge]).result
    assert isinstance(outcome, MigrationOutcome)
    # a notice and a goodbye may fail, an arrival is tried again; what cannot be taken out or put in ends the move
    aborts = step in (Step.DEHYDRATE, Step.REHYDRATE)
    assert outcome.status is (MoveStatus.ABORTED if aborts else MoveStatus.MOVED)


def test_a_grain_that_never_wakes_at_the_target_goes_back_with_its_state() -> None:
    async def scenario(cluster: Cluster) -> None:
        lodge = await lodge_at_1(cluster)
        cluster.fail(Step.ACTIVATE, times=2)
        back = cluster.when(Step.GIVE_BACK, lambda at: None)
        resumed = cluster.when(Step.RESUME, lambda at: None)
        await move_to_2(cluster, lodge)
        assert (await back.reached()).silo == "silo-2"
        assert (await resumed.reached()).silo == "silo-1"
        assert "ada" in await lodge.players()
        assert cluster.home(lodge) == "silo-1"

    run_simulated(scenario, kinds=[Lodge])


def test_a_grain_that_fails_to_start_is_tried_again_with_the_next_call() -> None:
    async def scenario(cluster: Cluster) -> None:
        room, other = cluster.client.grain(Room, "lobby"), cluster.client.grain(Room, "attic")
        failing = cluster.fail(Step.START, grain=room)
        assert await other.enter("ada") == 1
        with pytest.raises(ActivationFailed, match="the test lets room/lobby fail at 'start'"):
            await room.enter("ada")
        assert await room.enter("ada") == 1
        assert [place.grain.key for place in failing.places] == ["lobby"]

    run_simulated(scenario, kinds=[Room])


def test_a_way_can_be_cut_at_a_step_and_the_source_fences_what_it_is_in_doubt_of() -> None:
    async def scenario(cluster: Cluster) -> None:
        lodge = await lodge_at_1(cluster)
        cut = cluster.when(Step.COMMITTED, lambda at: cluster.partition(at.source, at.target))
        await move_to_2(cluster, lodge)
        assert (await cut.reached()).silo == "silo-2"
        cluster.heal()
        assert "ada" in await lodge.players()

    run_simulated(scenario, kinds=[Lodge], seeds=3)


def test_a_step_that_nothing_comes_to_fails_the_test() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        cluster.when(Step.GIVE_BACK, lambda at: cluster.kill(at.silo))
        cluster.fail(Step.DRAIN, grain=room)  # it has no on_migrating
        await room.enter("ada")
        await cluster.migrate(room)

    with pytest.raises(
        StepNotReached, match="planned, and not reached: any grain at 'give_back', room/lobby at 'drain'"
    ):
        run_simulated(scenario, kinds=[Room])


def test_a_mistake_in_what_was_planned_is_the_tests_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        def mistaken(_: Place) -> None:
            cluster.kill("silo-9")

        cluster.when(Step.START, mistaken)
        await cluster.client.grain(Room, "lobby").enter("ada")

    with pytest.raises(SimulationFailure, match="no silo called 'silo-9' runs"):
        run_simulated(scenario, kinds=[Room])


def test_only_what_runs_code_of_the_grain_can_fail() -> None:
    async def scenario(cluster: Cluster) -> None:
        for step in set(Step) - set(FAILING):
            with pytest.raises(ValueError, match=f"no code of the grain runs at '{step.value}'"):
                cluster.fail(step)
        with pytest.raises(ValueError, match="times=0: 1 or more is wanted"):
            cluster.when(Step.ASK, lambda at: None, times=0)

    run_simulated(scenario, kinds=[Room], silos=1)


def test_every_step_begins_with_an_order_of_the_protocol_or_is_told_apart() -> None:
    assert set(Step) - set(BY_ORDER.values()) == {Step.START, Step.WRITTEN, Step.COMMITTED}
    assert issubclass(InjectedFault, Exception)
