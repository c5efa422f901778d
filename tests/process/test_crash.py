"""Silos that die, freeze and spin: every call ends as promised, and no grain has two activations that take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from silo.client import Client
from silo.directory.addresses import SiloAddress
from silo.directory.membership import SiloStatus
from silo.reference import with_timeout
from silo.testing.witness import Ended, Event, What
from tests.process.grains import Counter
from tests.process.stage import LONG, Stage, in_ms, turn_of
from tests.process.witnessed import WitnessedCaller

SILOS = ("silo-1", "silo-2", "silo-3")
LEASE_S = 5.0
"""The default. Waiting for it is most of what the test without proof takes."""
DEADLINE_S = 4.0
GRAINS = 90
RATE = 400.0
"""Calls per second of each caller: a load, and not so much that the machine is the bottleneck."""
PROVED_WITHIN_S = 1.0
RETRY_PAUSE_S = 0.01


def grains_of(events: Sequence[Event], silo: SiloAddress) -> set[str]:
    """The grains whose last activation opened there."""
    last = {event.grain: event.silo for event in events if event.what is What.OPENED}
    return {grain for grain, where in last.items() if where == str(silo)}


async def answer_again_s(stage: Stage, client: Client, grains: set[str], lost_at: float) -> list[float]:
    """Call these grains, each until it answers; how long after the loss each one did."""
    caller = WitnessedCaller(stage.witness, "knocker")

    async def knock(grain: str) -> float:
        counter = with_timeout(client.grain(Counter, grain.removeprefix("counter/")), DEADLINE_S)
        while True:
            if await caller.call(counter.increment, target=grain, deadline_s=DEADLINE_S) is not None:
                return stage.now() - lost_at
            await asyncio.sleep(RETRY_PAUSE_S)

    return await asyncio.gather(*(knock(grain) for grain in grains))


@pytest.mark.parametrize("proof", [True, False], ids=["proof", "no_proof"])
async def test_kill_9_under_load_ends_every_call_and_brings_all_grains_back(
    make_stage: Callable[..., Stage], proof: bool
) -> None:
    """At once where the death can be proved, within 1.3 leases where it cannot."""
    within_s = PROVED_WITHIN_S if proof else 1.3 * LEASE_S
    settings: dict[str, object] = {"lease.lease_s": LEASE_S, "lease.prove_deaths": proof}
    async with make_stage(settings) as stage, stage.client() as client:
        await stage.start(*SILOS)
        await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(GRAINS)))
        for name in ("caller-1", "caller-2"):
            await stage.caller(name, grains=GRAINS, pipelined=2, rate=RATE, deadline_s=DEADLINE_S)
        await asyncio.sleep(1.0)
        grains = grains_of(stage.events(), (await stage.row("silo-2")).silo)
        await stage.kill("silo-2")
        recovered = await answer_again_s(stage, client, grains, stage.now())
        stage.healed()
        ended = await stage.stop_callers()

        stage.assert_promises_kept(settle_s=DEADLINE_S)
        print(f"\nproof {proof}: {len(grains)} grains answered again after: {in_ms(recovered)}; calls: {ended}")
        assert len(grains) > GRAINS / 6
        assert ended[Ended.APPLICATION_ERROR] == ended[Ended.CANCELLED] == 0
        assert max(recovered) < within_s


def tell_later(teller: Counter, other: str) -> Callable[[str], Awaitable[int]]:
    """What makes a teller take half a second, and then call another counter."""
    return lambda call: teller.increment_then_tell(call, other, 0.5)


def burning(counter: Counter, takes_s: float) -> Callable[[str], Awaitable[int]]:
    """What makes a counter compute for that long."""
    return lambda call: counter.burn(call, takes_s)


async def counters_on(client: Client, silo: str, count: int) -> dict[str, Counter]:
    """So many counters that live on that incarnation, which have taken no turn yet."""
    found: dict[str, Counter] = {}
    for number in range(20 * count):
        counter = client.grain(Counter, f"teller-{number}")
        if await counter.where() == silo:
            found[f"teller-{number}"] = counter
            if len(found) == count:
                break
    assert len(found) == count, f"too few grains were placed on {silo}"
    return found


async def test_a_frozen_silo_starts_nothing_once_it_goes_on_and_comes_back_as_another_incarnation(
    make_stage: Callable[..., Stage],
) -> None:
    """SIGSTOP for three leases, then SIGCONT: no turn starts, no reply and no call of the old incarnation counts."""
    lease_s = LEASE_S if LONG else 1.5
    async with make_stage({"lease.lease_s": lease_s}) as stage, stage.client(role="admin") as client:
        await stage.start(*SILOS)
        await stage.caller("caller-1", grains=GRAINS, pipelined=2, rate=RATE, deadline_s=DEADLINE_S)
        row = await stage.row("silo-2")
        tellers = await counters_on(client, str(row.silo), 6)

        # Turns that run while their silo is frozen, and want to make a call when it goes on.
        hand = WitnessedCaller(stage.witness, "hand")
        async with asyncio.TaskGroup() as group:
            for key, teller in tellers.items():
                send = tell_later(with_timeout(teller, 20.0), f"told-by-{key}")
                group.create_task(hand.call(send, target=f"counter/{key}", deadline_s=20.0))
            for key in tellers:
                await stage.witnessed(turn_of(f"counter/{key}"))
            silo = await stage.freeze("silo-2")
            await asyncio.sleep(3 * lease_s)
            assert await stage.status_of(silo) is SiloStatus.DEAD
            resumed_at = stage.now()
            stage.thaw("silo-2", silo)
            view = await stage.until(lambda view: any(each.info.name == "silo-2" for each in view.active()), 10.0)
        again = view.named("silo-2")
        assert again is not None
        assert again.silo.endpoint == silo.endpoint
        assert again.silo.incarnation != silo.incarnation

        # It serves again.
        moved = client.grain(Counter, "0")
        async with asyncio.timeout(10.0):  # it reads of its own arrival a little later than others may
            outcome = await client.migrate(moved, to="silo-2")
            while "has only just joined" in outcome.why:
                await asyncio.sleep(RETRY_PAUSE_S)
                outcome = await client.migrate(moved, to="silo-2")
        assert outcome.moved or outcome.why == "it is already there", str(outcome)
        assert await moved.where() == str(again.silo)
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
        told = [event for event in events if event.what is What.TURN_STARTED and "told-by" in event.grain]
        assert not told, "a call that the frozen incarnation made was run"
        assert hand.ended == {Ended.OUTCOME_UNKNOWN: len(tellers)}
        print(
            f"\n{len(tellers)} turns were frozen; the old incarnation witnessed {len(late)} events after that; {ended}"
        )


async def test_a_turn_that_burns_the_cpu_for_two_leases_kills_no_silo(make_stage: Callable[..., Stage]) -> None:
    """The lease is renewed by a thread of its own."""
    lease_s = 1.5
    async with make_stage({"lease.lease_s": lease_s}) as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        caller = WitnessedCaller(stage.witness, "caller-1")
        counter = with_timeout(client.grain(Counter, "busy"), 30.0)
        version = (await stage.view()).version
        for takes_s in (0.0, 2 * lease_s, 0.0):
            await caller.call(burning(counter, takes_s), target="counter/busy", deadline_s=30.0)
        assert caller.ended == {Ended.VALUE: 3}
        assert (await stage.view()).version == version
        stage.assert_promises_kept()
