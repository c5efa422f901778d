"""Redis loses what silos keep there, under load: nobody is deactivated, and what is served is said again. R-434."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from silo import Grain, grain, soft_state
from silo.directory.addresses import SiloAddress
from silo.directory.contract import Claim, Inquiry
from silo.directory.directory_scripts import bucket_of
from silo.directory.errors import NotExecuted, SiloUnavailable
from silo.host import Silo
from silo.reference import with_hint, with_timeout
from silo.settings import ActivationSettings
from silo.testing.cluster import Cluster
from silo.testing.members import LEASE
from silo.testing.simulated import run_simulated
from silo.testing.witness import What

GRAINS = 40
LONG = os.environ.get("SILO_TEST_LONG") == "1"
SEEDS = 3 if LONG else 1
PAUSE_S = 0.0 if LONG else 0.015
"""Between two calls of a grain: without it each is called two hundred times a second, and the story is mostly that."""


@grain(kind="tally")
class Tally(Grain):
    count: int = soft_state(default=0)

    async def add(self) -> int:
        self.count += 1
        return self.count


def play(story: Callable[[Cluster], Awaitable[None]], *, silos: int = 3) -> Any:
    return run_simulated(story, kinds=[Tally], silos=silos, seeds=SEEDS)


async def tallies(cluster: Cluster) -> list[Tally]:
    """Grains that were each called once."""
    grains = [cluster.client.grain(Tally, str(number)) for number in range(GRAINS)]
    assert await asyncio.gather(*(each.add() for each in grains)) == [1] * GRAINS
    return grains


def activations(cluster: Cluster) -> set[tuple[str, str]]:
    return {(each.grain, each.activation) for each in cluster.placed_activations()}


async def whole(cluster: Cluster, within_s: float) -> None:
    """Wait until the directory names all that is served, and nothing else."""
    async with asyncio.timeout(within_s):
        await cluster.seen(lambda: set(cluster.placed_rows()) == set(cluster.placed_activations()))


async def count_on(cluster: Cluster, grains: list[Tally], seconds: float) -> None:
    """Call all grains over and over; each goes on from where it was."""
    until, expected = cluster.now + seconds, 1
    while cluster.now < until:
        expected += 1
        assert await asyncio.gather(*(each.add() for each in grains)) == [expected] * GRAINS
        await asyncio.sleep(PAUSE_S)


def test_R434_a_wiped_directory_deactivates_nobody_and_is_whole_again_within_seconds() -> None:
    async def story(cluster: Cluster) -> None:
        grains = await tallies(cluster)
        before = activations(cluster)
        cluster.redis_wiped()
        await count_on(cluster, grains, 3.0)
        await whole(cluster, 10.0)
        assert activations(cluster) == before

    play(story)


def test_R434_a_directory_that_came_back_as_it_was_earlier_deactivates_nobody() -> None:
    async def story(cluster: Cluster) -> None:
        early = cluster.client.grain(Tally, "early")
        await early.add()
        set_back = cluster.redis_kept()
        grains = await tallies(cluster)
        home = next(each.silo for each in cluster.placed_activations() if each.grain == "tally/early")
        away = next(name for name, silo in cluster.hosts().items() if str(silo.address) != home)
        await cluster.migrate(early, to=away)
        before = activations(cluster)
        set_back()
        await count_on(cluster, grains, 3.0)
        await whole(cluster, 10.0)
        assert activations(cluster) == before
        assert await early.add() == 2, "it is where it was moved to since"

    play(story)


def test_R434_a_grain_that_is_new_waits_until_every_silo_has_said_what_it_serves() -> None:
    async def story(cluster: Cluster) -> None:
        await tallies(cluster)
        cluster.redis_wiped()
        assert await cluster.client.grain(Tally, "new").add() == 1
        await whole(cluster, 10.0)

    play(story)


def test_R434_a_wipe_amid_moves_leaves_each_grain_with_one_activation_and_its_state() -> None:
    async def story(cluster: Cluster) -> None:
        grains = await tallies(cluster)
        names = cluster.silos
        moves = [
            asyncio.create_task(cluster.client.migrate(each, to=names[number % len(names)]))
            for number, each in enumerate(grains)
        ]
        await asyncio.sleep(0.003)
        cluster.redis_wiped()
        await asyncio.gather(*moves)
        assert await asyncio.gather(*(each.add() for each in grains)) == [2] * GRAINS
        await whole(cluster, 10.0)

    play(story)


def test_R434_a_wipe_and_a_crash_cost_what_the_crash_costs() -> None:
    async def story(cluster: Cluster) -> None:
        grains = await tallies(cluster)
        victim = cluster.silos[0]
        address = str(cluster.hosts()[victim].address)
        lost = {each.grain for each in cluster.placed_activations() if each.silo == address}
        cluster.redis_wiped()
        cluster.kill(victim)
        await asyncio.sleep(20.0)
        kept = [each for each in grains if f"tally/{grains.index(each)}" not in lost]
        assert await asyncio.gather(*(each.add() for each in kept)) == [2] * len(kept)
        assert await asyncio.gather(*(each.add() for each in grains if each not in kept)) == [1] * len(lost)

    play(story)


@pytest.mark.parametrize("loss", ["wiped", "set back"])
def test_R434_silos_that_were_fenced_when_the_store_was_lost_go_on_with_their_grains(loss: str) -> None:
    async def story(cluster: Cluster) -> None:
        grains = await tallies(cluster)
        before = activations(cluster)
        set_back = cluster.redis_kept()
        cluster.redis_down()
        await asyncio.sleep(60.0)
        assert not any(silo.runtime.membership.right.is_held() for silo in cluster.hosts().values())
        if loss == "wiped":
            cluster.redis_wiped()
        else:
            set_back()
        cluster.redis_up()
        assert await asyncio.gather(*(each.add() for each in grains)) == [2] * GRAINS
        assert activations(cluster) == before
        await whole(cluster, 10.0)

    play(story)


def test_a_fresh_cluster_makes_its_first_grain_wait_for_nobody() -> None:
    async def story(cluster: Cluster) -> None:
        began = cluster.now
        assert await cluster.client.grain(Tally, "first").add() == 1
        assert cluster.now - began < 0.2

    run = run_simulated(story, kinds=[Tally], silos=1, seeds=SEEDS)
    assert not [event for event in run.events if event.what is What.FAULT]


# ---- a silo that starts in a wiped store


async def start_in_a_wiped_store(cluster: Cluster) -> Silo:
    """A silo that is the first to come to the store since that was wiped, while the others cannot reach it."""
    for name in cluster.silos:
        cluster.partition(name, "redis")
    cluster.redis_wiped()
    name = await cluster.start()
    return cluster.hosts()[name]


async def add_at(silo: Silo, timeout_s: float = 30.0) -> list[int | BaseException]:
    grains = [with_timeout(silo.grain(Tally, str(number)), timeout_s) for number in range(GRAINS)]
    return await asyncio.gather(*(each.add() for each in grains), return_exceptions=True)


def test_R434_a_silo_that_starts_in_a_wiped_store_begins_no_grain_that_others_may_serve_which_cannot_reach_it() -> None:
    async def story(cluster: Cluster) -> None:
        grains = await tallies(cluster)
        before = activations(cluster)
        newcomer = await start_in_a_wiped_store(cluster)
        assert (await newcomer.runtime.reporter.report()).awaits_earlier
        for error in await add_at(newcomer, 3.0):
            assert isinstance(error, NotExecuted)
            assert "started with --bootstrap; otherwise new grains wait up to 12.1 s" in str(error)
        assert await asyncio.gather(*(each.add() for each in grains)) == [2] * GRAINS, "they are served all the time"
        cluster.heal()
        assert await add_at(newcomer) == [3] * GRAINS
        assert activations(cluster) == before
        healed = cluster.now
        assert await newcomer.grain(Tally, "new").add() == 1
        assert not (await newcomer.runtime.reporter.report()).awaits_earlier
        assert cluster.now - healed < 1.0, "once all of them have come back nobody is waited for"

    play(story, silos=2)


def test_R434_when_nobody_can_serve_them_any_more_grains_begin_anew_and_who_comes_back_then_gives_its_own_up() -> None:
    async def story(cluster: Cluster) -> None:
        await tallies(cluster)
        old = {silo.address for silo in cluster.hosts().values()}
        newcomer = await start_in_a_wiped_store(cluster)
        began = cluster.now
        assert await add_at(newcomer) == [1] * GRAINS
        assert LEASE.lease_s + LEASE.grace_s < cluster.now - began < LEASE.wait_alone_s + 3.0
        cluster.heal()
        await cluster.seen(lambda: not old & {silo.address for silo in cluster.hosts().values()})
        await cluster.seen(lambda: len(newcomer.view.active()) == 3)
        assert await add_at(newcomer) == [2] * GRAINS

    play(story, silos=2)


def test_R434_another_silo_that_comes_to_the_wiped_store_waits_as_long_though_the_first_has_died() -> None:
    async def story(cluster: Cluster) -> None:
        await tallies(cluster)
        first = await start_in_a_wiped_store(cluster)
        await asyncio.sleep(2.0)
        name = await cluster.start(bootstrap=True)
        second = cluster.hosts()[name]
        began = cluster.now
        cluster.kill(first.name)
        assert await add_at(second) == [1] * GRAINS
        assert cluster.now - began > LEASE.lease_s + LEASE.grace_s - 3.0
        await cluster.client.close()

    play(story, silos=2)


# ---- a bucket that stays unsettled


CAP = 4
"""How many activations a silo begins at a time."""
WAKES_S = 0.05
UNSETTLED = 7
"""The bucket."""
NOTICED_WITHIN_S = 20.0
"""A silo to which nobody says so looks at each life by turns."""


@grain(kind="sleeper")
class Sleeper(Grain):
    """Takes its time to wake up."""

    waking: ClassVar[Counter[str]] = Counter()
    """By silo."""
    most = 0
    """At a time, at one silo."""

    async def on_activate(self) -> None:
        at = self.silo
        Sleeper.waking[at] += 1
        Sleeper.most = max(Sleeper.most, Sleeper.waking[at])
        await asyncio.sleep(WAKES_S)
        Sleeper.waking[at] -= 1

    async def touch(self) -> str:
        return self.key


@grain(kind="dreamer")
class Dreamer(Grain):
    """Wakes up with the help of a sleeper."""

    async def on_activate(self) -> None:
        self.dreamt = await with_hint(self.grain(Sleeper, self.key), self.silo).touch()

    async def touch(self) -> str:
        return self.dreamt


def keys_in(kind: str, bucket: int, count: int) -> list[str]:
    keys = (str(number) for number in itertools.count())
    return list(itertools.islice((key for key in keys if bucket_of(f"{kind}/{key}") == bucket), count))


def begin_another_life(cluster: Cluster, bucket: int) -> None:
    """What a loss of this bucket alone comes to: silos are to claim it anew, and do not know."""
    rows = cluster.world.rows
    life = rows.inquire(Inquiry(bucket)).life
    assert rows.claim(Claim(bucket, SiloAddress("nobody:1", 1), over=life, whole=False)).life != life


def play_with_a_cap(story: Callable[[Cluster], Awaitable[None]]) -> None:
    settings = {"activation": ActivationSettings(activations_in_flight_max=CAP)}
    run_simulated(story, kinds=[Sleeper, Dreamer], silos=2, seeds=SEEDS, settings=settings)


async def late_calls(cluster: Cluster, kind: type[Sleeper] | type[Dreamer]) -> tuple[Silo, list[asyncio.Task[str]]]:
    """Calls to grains that are begun before their silo knows that they must wait for another one, which is cut off.

    Returns the silo where they are begun, too.
    """
    Sleeper.waking.clear()
    Sleeper.most = 0
    here, away = cluster.hosts().values()
    await here.grain(Sleeper, "first").touch()
    cluster.partition(away.name, "redis")
    begin_another_life(cluster, UNSETTLED)
    keys = keys_in("sleeper", UNSETTLED, 5 * CAP)
    late = [asyncio.create_task(with_hint(here.grain(kind, key), here.name).touch()) for key in keys]
    await asyncio.sleep(1.0)
    assert not any(each.done() for each in late)
    return here, late


async def answered_in_places(cluster: Cluster, late: list[asyncio.Task[str]]) -> None:
    """The bucket is settled: all go on, as many at a time as their silo takes."""
    cluster.heal()
    assert await asyncio.gather(*late) == keys_in("sleeper", UNSETTLED, 5 * CAP)
    assert Sleeper.most <= CAP
    places = [silo.runtime.catalog.places for silo in cluster.hosts().values()]
    await cluster.seen(lambda: not any(each.in_flight or each.waiting_count for each in places))


def test_a_client_finds_a_silo_whose_death_only_it_remembers_since_the_table_was_set_back() -> None:
    async def story(cluster: Cluster) -> None:
        grains = await tallies(cluster)
        survivor, killer = cluster.silos
        set_back = cluster.redis_kept()
        cluster.pause(survivor)
        # When all have ended, what they were answered with or lost for has told the client of that silo's death.
        await asyncio.gather(*(with_timeout(each, 60.0).add() for each in grains), return_exceptions=True)
        cluster.kill(killer)
        set_back()
        cluster.resume(survivor)
        with pytest.raises(SiloUnavailable):  # it went to the other one
            await with_timeout(cluster.client.grain(Tally, "new"), 60.0).add()
        assert await with_timeout(cluster.client.grain(Tally, "new"), 60.0).add() == 1

    play(story, silos=2)


def test_R434_a_bucket_that_begins_another_life_is_settled_as_soon_as_one_silo_has_found_out() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = keys_in("tally", UNSETTLED, 2)
        assert await cluster.client.grain(Tally, first).add() == 1
        begin_another_life(cluster, UNSETTLED)
        began = cluster.now
        assert await cluster.client.grain(Tally, second).add() == 1
        assert cluster.now - began < 0.5
        await whole(cluster, 1.0)

    play(story)


def test_R434_activations_that_wait_for_an_unsettled_bucket_are_in_nobody_elses_way() -> None:
    async def story(cluster: Cluster) -> None:
        here, late = await late_calls(cluster, Sleeper)
        others = [key for key in map(str, range(10_000)) if bucket_of(f"sleeper/{key}") != UNSETTLED][: 5 * CAP]
        began = cluster.now
        calls = (with_hint(here.grain(Sleeper, key), here.name).touch() for key in others)
        assert await asyncio.gather(*calls) == others
        assert cluster.now - began < 1.0
        assert not any(each.done() for each in late)
        await answered_in_places(cluster, late)

    play_with_a_cap(story)


def test_R434_what_grains_wait_for_goes_on_in_the_places_that_those_lend_when_its_bucket_is_settled() -> None:
    async def story(cluster: Cluster) -> None:
        _, late = await late_calls(cluster, Dreamer)
        await answered_in_places(cluster, late)

    play_with_a_cap(story)


def test_R434_one_that_nobody_waits_for_any_more_is_not_begun_when_its_bucket_is_settled() -> None:
    async def story(cluster: Cluster) -> None:
        _, late = await late_calls(cluster, Sleeper)
        for each in late:
            each.cancel()
        await asyncio.wait(late)
        await asyncio.sleep(0.1)
        cluster.heal()
        silos = cluster.hosts().values()
        await cluster.seen(lambda: all(silo.runtime.lives.all_settled for silo in silos), NOTICED_WITHIN_S)
        await whole(cluster, 10.0)
        places = [silo.runtime.catalog.places for silo in silos]
        await cluster.seen(lambda: not any(each.in_flight or each.waiting_count for each in places))

    play_with_a_cap(story)
