"""Silos that die, freeze and spin: every call ends as promised, and no grain has two activations that take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.membership import SiloStatus
from silo.reference import with_timeout

from tests.process.grains import Counter
from tests.process.stage import LONG, Stage, in_ms
from tests.process.witnessed import WitnessedCaller
from tests.support.witness import Ended, Event, What

SILOS = ("silo-1", "silo-2", "silo-3")
LEASE_S = 5.0 if LONG else 2.0
DEADLINE_S = 4.0
GRAINS = 90
RATE = 400.0
"""Calls per second of each caller: a load, and not so much that the machine is the bottleneck."""
PROVED_WITHIN_S = 1.0


def grains_of(events: Sequence[Event], silo: SiloAddress) -> set[str]:
    """The grains whose last activation opened there."""
    last = {event.grain: event.silo for event in events if event.what is What.OPENED}
    return {grain for grain, where in last.items() if where == str(silo)}


def recovery_s(events: Sequence[Event], grains: set[str], lost_at: float) -> list[float]:
    """For each grain, how long after the loss the first new turn of it ended."""
    first: dict[str, float] = {}
    opened: set[str] = set()
    for event in events:
        if event.at < lost_at or event.grain not in grains:
            continue
        if event.what is What.OPENED:
            opened.add(event.grain)
        elif event.what is What.TURN_ENDED and event.grain in opened:
            first.setdefault(event.grain, event.at - lost_at)
    assert first.keys() == grains, f"{len(grains - first.keys())} grains never answered again"
    return list(first.values())


@pytest.mark.parametrize("proof", [True, False], ids=["proof", "no_proof"])
async def test_kill_9_under_load_ends_every_call_and_brings_all_grains_back(
    make_stage: Callable[..., Stage], proof: bool
) -> None:
    """At once where the death can be proved, within 1.3 leases where it cannot."""
    within_s = PROVED_WITHIN_S if proof else 1.3 * LEASE_S
    async with make_stage({"lease.lease_s": LEASE_S, "lease.prove_deaths": proof}) as stage:
        await stage.start(*SILOS)
        for name in ("caller-1", "caller-2"):
            await stage.caller(name, grains=GRAINS, pipelined=2, rate=RATE, deadline_s=DEADLINE_S)
        await asyncio.sleep(2.0)
        before = stage.events()
        lost_at = stage.now()
        silo = await stage.kill("silo-2")
        grains = grains_of(before, silo)
        await asyncio.sleep(1.3 * LEASE_S + DEADLINE_S)
        stage.healed()
        ended = await stage.stop_callers()

        events = stage.assert_promises_kept(settle_s=DEADLINE_S)
        recovered = recovery_s(events, grains, lost_at)
        print(f"\nproof {proof}: {len(grains)} grains answered again after: {in_ms(recovered)}; calls: {ended}")
        assert len(grains) > GRAINS / 6
        assert ended[Ended.APPLICATION_ERROR] == ended[Ended.CANCELLED] == 0
        assert max(recovered) < within_s


async def test_a_frozen_silo_starts_nothing_once_it_goes_on_and_comes_back_as_another_incarnation(
    make_stage: Callable[..., Stage],
) -> None:
    """SIGSTOP for three leases, then SIGCONT: no turn starts, no reply and no call of the old incarnation counts."""
    lease_s = LEASE_S if LONG else 1.5
    async with make_stage({"lease.lease_s": lease_s}) as stage, stage.client() as client:
        await stage.start(*SILOS)
        await stage.caller("caller-1", grains=GRAINS, pipelined=2, rate=RATE, deadline_s=DEADLINE_S)
        hand = WitnessedCaller(stage.witness, "hand")

        # Turns that run while their silo is frozen, and want to make a call when it goes on.
        tellers = [client.grain(Counter, f"teller-{number}") for number in range(12)]
        for number, teller in enumerate(tellers):
            await hand.call(teller.increment, target=f"counter/teller-{number}", deadline_s=30.0)
        incarnations = [await teller.where() for teller in tellers]
        row = await stage.row("silo-2")
        frozen = [number for number, where in enumerate(incarnations) if where == str(row.silo)]
        assert frozen, "no teller lives on the silo that is to be frozen"
        async with asyncio.TaskGroup() as group:
            for number in frozen:
                teller = with_timeout(tellers[number], 20.0)
                group.create_task(
                    hand.call(
                        lambda call, teller=teller, number=number: teller.increment_then_tell(
                            call, f"told-{number}", 0.5
                        ),
                        target=f"counter/teller-{number}",
                        deadline_s=20.0,
                    )
                )
            for number in frozen:
                await stage.witnessed(
                    lambda event, number=number: event.what is What.TURN_STARTED
                    and event.grain == f"counter/teller-{number}"
                    and event.call not in ("hand-%d" % (number + 1),)
                )
            silo = await stage.freeze("silo-2")
            await asyncio.sleep(3 * lease_s)
            assert await stage.status_of(silo) is SiloStatus.DEAD
            resumed_at = stage.now()
            stage.thaw("silo-2", silo)
            view = await stage.until(lambda view: view.named("silo-2") is not None, 10.0)
            row = view.named("silo-2")
            assert row is not None
            assert row.silo.endpoint == silo.endpoint
            assert row.silo.incarnation != silo.incarnation
        await stage.until(lambda view: any(each.info.name == "silo-2" for each in view.active()), 10.0)

        # It serves again.
        async with stage.client(role="admin") as admin:
            outcome = await admin.migrate(admin.grain(Counter, "teller-0"), to="silo-2")
            if not outcome.moved:
                outcome = await admin.migrate(admin.grain(Counter, "teller-0"), to="silo-1")
                outcome = await admin.migrate(admin.grain(Counter, "teller-0"), to="silo-2")
            assert outcome.moved, str(outcome)
        assert await client.grain(Counter, "teller-0").where() == str(row.silo)
        stage.healed()
        ended = await stage.stop_callers()

        events = stage.assert_promises_kept(settle_s=DEADLINE_S)
        old = str(silo)
        late = [event for event in events if event.silo == old and event.at > resumed_at]
        assert not [event for event in late if event.what in (What.TURN_STARTED, What.OPENED)]
        executed_by = {event.call: event.silo for event in events if event.what is What.TURN_STARTED}
        answered = [event for event in events if event.what is What.CALL_ENDED and event.outcome == Ended.VALUE]
        replies = [event for event in answered if event.at > resumed_at and executed_by.get(event.call) == old]
        assert not replies, f"{len(replies)} replies of the frozen incarnation were accepted"
        told = [event for event in events if event.what is What.TURN_STARTED and event.grain.startswith("counter/told-")]
        assert not told, "a call that the frozen incarnation made was run"
        print(f"\n{len(frozen)} turns were frozen; after that {len(late)} events of the old incarnation; calls: {ended}")


async def test_a_turn_that_burns_the_cpu_for_two_leases_kills_no_silo(make_stage: Callable[..., Stage]) -> None:
    """The lease is renewed by a thread of its own."""
    lease_s = 1.5
    async with make_stage({"lease.lease_s": lease_s}) as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        caller = WitnessedCaller(stage.witness, "caller-1")
        counter = with_timeout(client.grain(Counter, "busy"), 30.0)
        version = (await stage.view()).version
        for takes_s in (0.0, 2 * lease_s, 0.0):
            await caller.call(
                lambda call, takes_s=takes_s: counter.burn(call, takes_s), target="counter/busy", deadline_s=30.0
            )
        assert caller.ended == {Ended.VALUE: 3}
        assert (await stage.view()).version == version
        stage.assert_promises_kept()
