"""Calls that were on their way by a silo that dies: who holds them decides, and nobody waits for a timeout.

R-412, R-413, R-433. The caller is on silo a, goes by a stale entry to b, and the grain is on c.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from silo.activation.activation import State
from silo.directory.errors import NotExecuted, OutcomeUnknown, SiloUnavailable
from silo.host import Silo
from silo.reference import grain_id, with_hint, with_timeout
from silo.routing.claims import DOUBT_S
from silo.routing.forwarded_calls import Key
from silo.wire.frames import Claim, Flag, Request
from tests.cluster.clusters import LEASE
from tests.cluster.grains import Ledger
from tests.cluster.mortal import MortalCluster, simulated
from tests.cluster.stage import Stage

ABC = ("a", "b", "c")
KNOWN_WITHIN_S = 1.3 * LEASE.lease_s
"""By then the death of a silo is known, though nobody proves it."""
PROMPT_S = 1.0
"""How long after that a call may go on whose outcome nobody can tell."""


async def ended(call: Awaitable[object]) -> object:
    """What the call answers, or the error that it ends with."""
    return (await asyncio.gather(call, return_exceptions=True))[0]


async def moved_away(mortal: MortalCluster, *others: str) -> tuple[Silo, Ledger]:
    """A grain that was on b when a called it, and has moved to c, of which a has not heard."""
    a, b, *_ = await mortal.start(*ABC, *others, kinds=(Ledger,))
    ledger = a.grain(Ledger, "k")
    await with_hint(ledger, "b").write("first")
    assert (await b.migrate(ledger, to="c")).moved
    await asyncio.sleep(0.5)
    entry = a.runtime.cache.get(grain_id(ledger))
    assert entry is not None
    assert entry.silo == b.address
    return a, ledger


@simulated
async def test_R412_R433_the_death_of_a_mere_forwarder_does_not_fail_a_call_that_has_arrived(
    mortal: MortalCluster, stage: Stage
) -> None:
    """The forward has come to c, and the word of it has not come to a."""
    a, ledger = await moved_away(mortal)
    b = mortal.silos["b"].address
    mortal.world.network.cut("b", "a", one_way=True)
    calling = asyncio.create_task(with_timeout(ledger, 60.0).write_at("go", "second"))
    await stage.heard("started second")
    mortal.kill_now("b")
    await mortal.seen(lambda: a.view.is_dead(b))
    await asyncio.sleep(2 * PROMPT_S)
    assert not calling.done()
    stage.gate("go").open()
    assert await calling == "c"
    assert await ledger.read() == ["first", "second"]


@pytest.mark.parametrize("word", ["came", "did not come"])
@simulated
async def test_R412_R433_a_call_that_died_with_its_forwarder_was_not_executed_and_says_so_promptly(
    mortal: MortalCluster, stage: Stage, word: str
) -> None:
    """The forward has not left b. Whether a has heard of it makes no difference."""
    a, ledger = await moved_away(mortal)
    b = mortal.silos["b"].address
    mortal.world.network.cut("b", "c", one_way=True)
    if word == "did not come":
        mortal.world.network.cut("b", "a", one_way=True)
    calling = asyncio.create_task(ended(with_timeout(ledger, 60.0).write("second")))
    await asyncio.sleep(0.5)
    assert not calling.done()
    mortal.kill_now("b")
    await mortal.seen(lambda: a.view.is_dead(b))
    async with asyncio.timeout(PROMPT_S):
        error = await calling
    assert isinstance(error, NotExecuted)
    assert "c:7000" in str(error)
    mortal.world.network.heal()  # what b had written comes to c now, and is not run
    await asyncio.sleep(5.0)
    assert await ledger.write("third") == 2  # safe to do again, since it has not been done
    assert len(a.runtime.book) == 0


@simulated
async def test_R412_the_death_of_whoever_holds_a_call_fails_it_promptly(mortal: MortalCluster, stage: Stage) -> None:
    a, ledger = await moved_away(mortal)
    c = mortal.silos["c"].address
    calling = asyncio.create_task(ended(with_timeout(ledger, 60.0).write_at("never", "second")))
    await stage.heard("started second")
    mortal.kill_now("c")
    await mortal.seen(lambda: a.view.is_dead(c))
    async with asyncio.timeout(PROMPT_S):
        assert isinstance(await calling, SiloUnavailable)


@simulated
async def test_R412_the_death_of_forwarder_and_holder_at_once_fails_a_call_promptly(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, ledger = await moved_away(mortal, "d", "e")  # who may judge the two
    b, c = (mortal.silos[name].address for name in ("b", "c"))
    calling = asyncio.create_task(ended(with_timeout(ledger, 60.0).write_at("never", "second")))
    await stage.heard("started second")
    mortal.kill_now("b")
    mortal.kill_now("c")
    await mortal.seen(lambda: a.view.is_dead(b) and a.view.is_dead(c))
    async with asyncio.timeout(PROMPT_S):
        assert isinstance(await calling, SiloUnavailable)


@simulated
async def test_R412_a_call_that_ran_before_the_move_is_never_taken_for_one_that_did_not(
    mortal: MortalCluster, stage: Stage
) -> None:
    """It ran on b, its answer was lost with b, and c, which has the grain now, never had it."""
    a, b, _ = await mortal.start(*ABC, kinds=(Ledger,))
    ledger = a.grain(Ledger, "k")
    await with_hint(ledger, "b").write("first")
    address = b.address
    mortal.world.network.cut("b", "a", one_way=True)
    calling = asyncio.create_task(ended(with_timeout(ledger, 60.0).write("second")))
    await asyncio.sleep(0.5)
    assert (await b.migrate(ledger, to="c")).moved
    mortal.kill_now("b")
    await mortal.seen(lambda: a.view.is_dead(address))
    async with asyncio.timeout(PROMPT_S):
        assert isinstance(await calling, OutcomeUnknown)
    assert await ledger.read() == ["first", "second"]


@simulated
async def test_R412_without_the_directory_nobody_waits_for_it_to_say_who_holds_a_call(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, ledger = await moved_away(mortal)
    b = mortal.silos["b"].address
    mortal.world.network.cut("b", "c", one_way=True)
    mortal.world.network.cut("b", "a", one_way=True)
    calling = asyncio.create_task(ended(with_timeout(ledger, 60.0).write("second")))
    await asyncio.sleep(0.5)
    mortal.world.without_directory.add("a")
    mortal.kill_now("b")
    await mortal.seen(lambda: a.view.is_dead(b))
    async with asyncio.timeout(PROMPT_S):
        assert isinstance(await calling, OutcomeUnknown)


@simulated
async def test_R433_a_call_that_was_claimed_is_refused_when_it_comes_late_also_where_its_grain_has_moved_to(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, ledger = await moved_away(mortal)
    b, c = mortal.silos["b"], mortal.silos["c"]
    grain = grain_id(ledger)
    late = Request(
        77, grain, "write", *a.runtime.codec.encode_call(("late",), {}), 60.0, "client", Flag.FORWARDED, a.address, 1
    )
    c.runtime.router.on_frame(a.address, Claim(77, grain, 60.0))
    c.runtime.router.on_request(late)
    assert (await c.migrate(ledger, to="b")).moved
    assert b.runtime.router.forwarded.refused_of(grain, asyncio.get_running_loop().time())[0][0] == Key(a.address, 77)
    b.runtime.router.on_request(late)
    assert await ledger.read() == ["first"]


@simulated
async def test_a_call_does_not_overtake_one_that_was_sent_on_before_it_though_the_grain_has_come_to_meet_it(
    mortal: MortalCluster, stage: Stage
) -> None:
    """c has moved the grain back to b before the call comes there that b has sent on; the next one meets it at b."""
    _, ledger = await moved_away(mortal)
    b, c, network = mortal.silos["b"], mortal.silos["c"], mortal.world.network

    def state_at(silo: Silo) -> State | None:
        activation = silo.runtime.catalog.get(grain_id(ledger))
        return activation.state if activation is not None else None

    running = asyncio.create_task(c.grain(Ledger, "k").write_at("go", "there"))
    await stage.heard("started there")
    moving = asyncio.create_task(c.migrate(ledger, to="b"))
    await mortal.seen(lambda: state_at(c) is State.DRAINING)
    network.cut("b", "c", one_way=True)
    network.cut("b", "a", one_way=True)
    calls = [asyncio.create_task(with_timeout(ledger, 60.0).write("second"))]
    await mortal.seen(lambda: len(b.runtime.router.trails) == 1)
    stage.gate("go").open()
    await running

    await mortal.seen(lambda: state_at(b) is State.OPEN)
    calls.append(asyncio.create_task(with_timeout(ledger, 60.0).write("third")))
    await asyncio.sleep(0.1)
    network.heal()
    assert (await moving).moved
    assert await asyncio.gather(*calls) == [3, 4]
    calls = [asyncio.create_task(ledger.write(thing)) for thing in ("fourth", "fifth")]
    assert await asyncio.gather(*calls) == [5, 6]
    assert await ledger.read() == ["first", "there", "second", "third", "fourth", "fifth"]


@simulated
async def test_R413_calls_of_a_client_whose_gateway_dies_end_when_that_is_known_and_later_ones_go_on(
    mortal: MortalCluster, stage: Stage
) -> None:
    await mortal.start(*ABC, kinds=(Ledger,))
    client, another = await mortal.client(), await mortal.client()
    for number in range(12):  # the other one is told where they are
        await with_hint(another.grain(Ledger, f"k{number}"), "c").write("first")
    ledgers = [client.grain(Ledger, f"k{number}") for number in range(12)]
    calls = [asyncio.create_task(ended(with_timeout(each, 60.0).write_at("go", f"second {each}"))) for each in ledgers]
    for each in ledgers:
        await stage.heard(f"started second {each}")
    mortal.kill_now("a")
    done, through_others = await asyncio.wait(calls, timeout=KNOWN_WITHIN_S + PROMPT_S)
    assert done
    assert through_others
    assert {type(call.result()) for call in done} == {SiloUnavailable}
    stage.gate("go").open()
    assert {await call for call in through_others} == {"c"}
    for ledger in ledgers:
        assert await ledger.write("third") == 3


@simulated
async def test_R433_a_call_whose_forwarder_is_only_out_of_reach_is_not_said_to_have_never_run(
    mortal: MortalCluster, stage: Stage
) -> None:
    """It never came to c; but b lives, and might still send it on."""
    a, ledger = await moved_away(mortal)
    network = mortal.world.network
    network.cut("b", "c", one_way=True)
    network.cut("b", "a", one_way=True)
    calling = asyncio.create_task(ended(with_timeout(ledger, 120.0).write("second")))
    await asyncio.sleep(DOUBT_S / 2)
    assert not calling.done()
    assert a.view.is_alive(mortal.silos["b"].address)
    network.heal()
    assert isinstance(await calling, OutcomeUnknown)
    await asyncio.sleep(5.0)
    assert await ledger.read() in (["first"], ["first", "second"])
