"""Event loops that stand still: for a while they cost a silo nothing but new grains, for good they end its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from silo.directory.loop_watch import LOOP_STUCK_EXIT_CODE
from silo.loads import LAG_MAX_S, LOAD_PERIOD_S
from silo.reference import with_hint, with_timeout
from silo.testing.witness import Ended, What
from tests.process.grains import Counter
from tests.process.stage import LONG, Stage, ended_with, turn_of
from tests.process.test_crash import burning
from tests.process.witnessed import WitnessedCaller

SILOS = ("silo-1", "silo-2", "silo-3")
LEASE_S = 5.0 if LONG else 1.5
BLOCKED_S = 3 * LEASE_S
PASSED_OVER_AFTER_S = LOAD_PERIOD_S + LAG_MAX_S
"""So long after its last word the others place nothing on a silo; and they hear from it once a second."""
NEW_GRAINS = 90
NEW_GRAIN_DEADLINE_S = 1.5
"""Less than the block still lasts: a grain that was placed on the blocked silo would not answer in time."""
STUCK_AFTER_S = 3.0
STUCK_SINCE_S = 1.0
"""The last beat of the loop was so long before the turn that blocked it, at most."""
STUCK_NOTICED_WITHIN_S = 2.0
FOR_EVER_S = 3_600.0
RETRY_PAUSE_S = 0.01


async def test_a_loop_blocked_for_three_leases_costs_no_life_and_no_state_and_gets_no_placements_meanwhile(
    make_stage: Callable[..., Stage],
) -> None:
    async with make_stage({"lease.lease_s": LEASE_S}) as stage, stage.client(role="admin") as client:
        await stage.start("silo-1", "silo-3")
        await stage.start("silo-2", settings={"gateway": False})  # so that whoever calls does not wait for it as such
        caller = WitnessedCaller(stage.witness, "caller-1")
        counter = with_timeout(with_hint(client.grain(Counter, "busy"), "silo-2"), BLOCKED_S + 30.0)
        await caller.call(counter.increment, target="counter/busy", deadline_s=BLOCKED_S + 30.0)
        if await counter.where() != str((await stage.row("silo-2")).silo):  # it joined a moment ago
            assert (await client.migrate(counter, to="silo-2")).moved
        await asyncio.sleep(2 * LOAD_PERIOD_S)  # by then every silo has reported its load; only time says so
        before = await stage.view()
        blocked = str((await stage.row("silo-2")).silo)

        stage.witness(What.FAULT, because="the loop of silo-2 is blocked")  # links to it may be given up meanwhile
        send = burning(counter, BLOCKED_S)
        burn = asyncio.create_task(caller.call(send, target="counter/busy", deadline_s=BLOCKED_S + 30.0))
        began = await stage.witnessed(lambda event: turn_of("counter/busy")(event) and event.call == "caller-1-2")
        assert began.silo == blocked
        await asyncio.sleep(began.at + PASSED_OVER_AFTER_S - stage.now())
        news = [with_timeout(client.grain(Counter, f"new-{key}"), NEW_GRAIN_DEADLINE_S) for key in range(NEW_GRAINS)]
        homes = await asyncio.gather(*(new.where() for new in news))
        assert not burn.done(), "the block was over before the new grains were placed"
        assert blocked not in homes, f"{homes.count(blocked)} of {NEW_GRAINS} grains were placed on it"

        await burn
        await stage.witnessed(lambda event: event.what is What.TURN_ENDED and event.call == "caller-1-2", BLOCKED_S)
        stage.healed()
        known = caller.ended[Ended.VALUE]  # of the blocked turn alone the outcome may be unknown
        assert known + caller.ended[Ended.OUTCOME_UNKNOWN] == 2
        assert known >= 1
        await caller.call(counter.increment, target="counter/busy", deadline_s=BLOCKED_S + 30.0)
        assert caller.ended[Ended.VALUE] == known + 1
        assert await counter.read() == 3
        assert await counter.where() == blocked
        assert (await stage.view()).version == before.version, "somebody was declared dead, or joined"
        stage.assert_promises_kept()
        print(f"\nblocked for {BLOCKED_S:.1f} s = 3 leases: the view stayed, {NEW_GRAINS} new grains went elsewhere")


async def test_a_loop_that_never_comes_back_ends_its_process_and_its_grains_are_served_elsewhere(
    make_stage: Callable[..., Stage],
) -> None:
    settings: dict[str, object] = {"lease.lease_s": LEASE_S, "loop_stuck_after_s": STUCK_AFTER_S}
    async with make_stage(settings) as stage, stage.client() as client:
        await stage.start(*SILOS)
        caller = WitnessedCaller(stage.witness, "caller-1")
        counter = with_timeout(with_hint(client.grain(Counter, "stuck"), "silo-2"), 30.0)
        silo = (await stage.row("silo-2")).silo
        send = burning(counter, FOR_EVER_S)
        burn = asyncio.create_task(caller.call(send, target="counter/stuck", deadline_s=30.0))
        began = await stage.witnessed(turn_of("counter/stuck"))
        assert began.silo == str(silo)
        stage.witness(What.FAULT, because="silo-2 is stuck")

        code = await ended_with(stage.cluster["silo-2"], STUCK_AFTER_S + 10.0)
        ended_s = stage.now() - began.at
        stage.witness(What.SILO_LOST, silo=str(silo), because="stuck")
        assert code == LOOP_STUCK_EXIT_CODE
        await burn
        assert caller.ended == {Ended.OUTCOME_UNKNOWN: 1}
        async with asyncio.timeout(10.0):
            while await caller.call(counter.increment, target="counter/stuck", deadline_s=30.0) is None:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(RETRY_PAUSE_S)
        answered_s = stage.now() - began.at
        assert await counter.where() != str(silo)
        stage.healed()
        stage.assert_promises_kept()
        print(
            f"\nstuck for ever, given up after {STUCK_AFTER_S} s: the process ended {ended_s:.2f} s after the turn "
            f"began, its grain answered elsewhere after {answered_s:.2f} s"
        )
        assert STUCK_AFTER_S - STUCK_SINCE_S <= ended_s < STUCK_AFTER_S + STUCK_NOTICED_WITHIN_S
