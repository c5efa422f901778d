"""How much a silo takes: so many activations at a time, fewer while it is young, and no more than its bound. R-319."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter as Tally
from collections.abc import Iterator, Sequence

import pytest

from silo.activation.intake import IntakeLimits
from silo.directory.errors import CallExpired, GrainUnplaceable, NotExecuted
from silo.grain import Grain, grain, one_way, soft_state
from silo.host import Silo
from silo.loads import LOAD_PERIOD_S
from silo.migration.outcome import MoveStatus
from silo.reference import grain_id, with_hint, with_timeout
from silo.reporting import CAPACITY_TOLD_EVERY_S
from silo.routing.waking import Chance
from silo.settings import ActivationSettings, CallSettings
from tests.cluster.clusters import Cluster, MemoryStand
from tests.cluster.stage import Stage, gate, say

AT_ONCE_S = 0.05
CAP = 64
BURST = 2_000
ACTIVATION_S = 0.05


class Beginnings:
    """How many activations are in `on_activate`, by silo: as the grains themselves count."""

    def __init__(self) -> None:
        self.now: Tally[str] = Tally()
        self.noted: list[tuple[str, float, int]] = []
        """The silo, when one more began there, and how many there were then."""

    def begin(self, silo: str) -> None:
        self.now[silo] += 1
        self.noted.append((silo, asyncio.get_running_loop().time(), self.now[silo]))

    def most(self, silo: str) -> int:
        return max((count for name, _, count in self.noted if name == silo), default=0)


BEGINNINGS = Beginnings()


@pytest.fixture(autouse=True)
def beginnings() -> Iterator[Beginnings]:
    BEGINNINGS.__init__()  # type: ignore[misc] # the grains hold this very object
    return iter((BEGINNINGS,))


@grain(kind="slow", placement="activation-count")
class Slow(Grain):
    """Takes its time to wake up."""

    async def on_activate(self) -> None:
        BEGINNINGS.begin(self.silo)
        await asyncio.sleep(ACTIVATION_S)
        BEGINNINGS.now[self.silo] -= 1

    async def touch(self) -> str:
        return self.silo


def taking(most: int, **others: float | None) -> ActivationSettings:
    return ActivationSettings.model_validate({"activations_in_flight_max": most, **others})


async def touched(silos: Sequence[Silo], name: str, count: int) -> list[str]:
    """So many new grains, called at once through these silos in turn; where they are."""
    calls = (silos[number % len(silos)].grain(Slow, f"{name} {number}").touch() for number in range(count))
    return await asyncio.gather(*calls)


async def burst_when_one_has_joined(cluster: Cluster, settings: ActivationSettings) -> tuple[Tally[str], float]:
    """Three silos have work, a fourth has just joined, and many new grains are called: where those are.

    Also when the fourth began, by the loop's time.
    """
    old = await cluster.start("a", "b", "c", kinds=(Slow,), activation=settings)
    await touched(old, "old", 300)
    BEGINNINGS.__init__()  # type: ignore[misc]
    began = asyncio.get_running_loop().time()
    await cluster.start("d", kinds=(Slow,), activation=settings)
    return Tally(await touched(old, "new", BURST)), began


async def test_R319_a_newcomer_begins_no_more_at_a_time_than_its_cap_and_all_calls_are_answered(
    cluster: Cluster,
) -> None:
    homes, _ = await burst_when_one_has_joined(cluster, taking(CAP))
    assert homes.total() == BURST
    assert {name: BEGINNINGS.most(name) for name in "abcd"} == dict.fromkeys("abcd", CAP)
    assert homes["d"] >= BURST // 5  # it has its share of the work all the same


async def test_R319_without_a_cap_the_newcomer_is_run_over(cluster: Cluster) -> None:
    """What the cap is for: the same without shows that the scenario is one."""
    await burst_when_one_has_joined(cluster, taking(1_000_000))
    assert BEGINNINGS.most("d") > 5 * CAP


async def test_R319_a_newcomer_that_warms_up_begins_no_more_than_its_age_allows(cluster: Cluster) -> None:
    warm_up_s = 4.0
    homes, began = await burst_when_one_has_joined(cluster, taking(CAP, warm_up_s=warm_up_s))
    assert homes.total() == BURST
    limits = IntakeLimits(CAP, warm_up_s)
    of_d = [(at - began, count) for name, at, count in BEGINNINGS.noted if name == "d"]
    assert of_d
    assert all(count <= limits.cap_at(age_s) for age_s, count in of_d)
    assert any(count > 2 * limits.cap_at(0.0) for _, count in of_d)  # it did take more by and by


async def test_R319_placement_passes_over_a_silo_that_has_enough_in_flight(cluster: Cluster, stage: Stage) -> None:
    a, b = await cluster.start("a", "b", kinds=(Held,), activation=taking(4))
    held = [asyncio.create_task(with_hint(a.grain(Held, f"k{number}"), "b").where()) for number in range(4)]
    await stage.heard("waking", 4)
    decision = a.runtime.placement.choose(grain_id(a.grain(Held, "one more")), a.view, hint=b.address)
    assert decision.silo == a.address
    assert "4 of 4 activations in flight" in decision.explain()
    await asyncio.sleep(LOAD_PERIOD_S)  # by now b has said so itself, and nothing is counted twice
    assert a.runtime.loads.why_busy(b.view.table.rows[1]) == "4 of 4 activations in flight"
    stage.gate("wake").open()
    assert set(await asyncio.gather(*held)) == {"b"}
    assert a.runtime.placement.choose(grain_id(a.grain(Held, "more")), a.view, hint=b.address).silo == a.address
    await asyncio.sleep(LOAD_PERIOD_S)
    assert a.runtime.placement.choose(grain_id(a.grain(Held, "more")), a.view, hint=b.address).silo == b.address


@grain(kind="held")
class Held(Grain):
    """Wakes up when the test lets it."""

    async def on_activate(self) -> None:
        say("waking")
        say(f"waking {self.key}")
        await gate("wake")

    async def where(self) -> str:
        return self.silo


async def test_one_that_nobody_waits_for_any_more_is_not_begun_when_its_turn_comes(
    cluster: Cluster, stage: Stage
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Held,), activation=taking(1))
    loop = asyncio.get_running_loop()
    first = asyncio.create_task(with_hint(a.grain(Held, "first"), "b").where())
    await stage.heard("waking")
    begun = loop.time()
    second = asyncio.create_task(with_hint(a.grain(Held, "second"), "a").where())  # from here on both have enough
    await stage.heard("waking", 2)
    for silo in (a, b):  # from afar, and from here
        with pytest.raises(CallExpired):
            await with_timeout(with_hint(silo.grain(Held, f"deserted {silo.name}"), "b"), 2.0).where()
    assert loop.time() - begun < 5.0
    assert b.runtime.catalog.places.waiting_count == 2
    stage.gate("wake").open()
    assert (await first, await second) == ("b", "a")
    await cluster.seen(lambda: not any(silo.runtime.catalog.places.waiting_count for silo in (a, b)))
    assert not {f"waking deserted {name}" for name in "ab"} & set(stage.lines)
    assert all(silo.runtime.catalog.places.in_flight == 0 for silo in (a, b))


# No deadlock


@grain(kind="link")
class Link(Grain):
    """Wakes up by calling the next of its chain: on the same silo, or by turns on two."""

    async def on_activate(self) -> None:
        number, silos = int(self.key.partition(" ")[0]), self.key.partition(" ")[2]
        if number:
            name = silos[number % len(silos)]
            await with_hint(self.grain(Link, f"{number - 1} {silos}"), name).where()

    async def where(self) -> str:
        return self.silo


@pytest.mark.parametrize("silos", ["a", "ab"])
@pytest.mark.parametrize("cap", [1, 2])
async def test_R319_a_chain_of_activations_deeper_than_the_cap_waits_for_no_place_of_its_own(
    cluster: Cluster, silos: str, cap: int
) -> None:
    await cluster.start(*silos, kinds=(Link,), activation=taking(cap))
    client = await cluster.client()
    began = asyncio.get_running_loop().time()
    chains = [with_hint(client.grain(Link, f"{10 + number} {silos}"), silos[0]).where() for number in range(5)]
    await asyncio.gather(*chains)
    assert asyncio.get_running_loop().time() - began < 1.0


@grain(kind="registry")
class Registry(Grain):
    """What every member tells of itself when it wakes up; it calls grains of its own for that."""

    async def enter(self, name: str) -> str:
        note = self.grain(Note, name)
        await note.write(name)
        return await note.read()


@grain(kind="note")
class Note(Grain):
    text: str = soft_state(default="")

    @one_way
    async def write(self, text: str) -> None:
        self.text = text

    async def read(self) -> str:
        return self.text


@grain(kind="member")
class Member(Grain):
    async def on_activate(self) -> None:
        self.entered = await self.grain(Registry, "all").enter(self.key)

    async def touch(self) -> str:
        return self.entered


async def test_R319_activations_that_wait_for_a_busy_grain_are_not_in_the_way_of_what_that_one_calls(
    cluster: Cluster,
) -> None:
    """The places are held by members that wait for the registry, whose turn waits for a grain that needs a place."""
    a, b = await cluster.start("a", "b", kinds=(Registry, Note, Member), activation=taking(2))
    began = asyncio.get_running_loop().time()
    silos = (a, b)
    calls = [silos[number % 2].grain(Member, f"k{number}").touch() for number in range(40)]
    calls += [
        silos[number % 2].grain(Note, f"k{number}").read() for number in range(40)
    ]  # some come from outside first
    answers = await asyncio.gather(*calls)
    assert answers[:40] == [f"k{number}" for number in range(40)]
    assert asyncio.get_running_loop().time() - began < 5.0


# The bound


@grain(kind="seat")
class Seat(Grain):
    async def where(self) -> str:
        return self.silo

    async def leave(self) -> None:
        self.deactivate()


def seating(most: int) -> ActivationSettings:
    return ActivationSettings(activations_max=most)


@pytest.mark.real
async def test_no_silo_hosts_more_than_its_bound_and_what_does_not_fit_is_placed_elsewhere(cluster: Cluster) -> None:
    silos = await cluster.start("a", "b", "c", kinds=(Seat,), activation=seating(10))
    calls = [silos[number % 3].grain(Seat, f"k{number}") for number in range(30)]
    homes = Tally(await asyncio.gather(*(with_hint(seat, "a").where() for seat in calls)))  # all of them want a
    assert homes == {"a": 10, "b": 10, "c": 10}
    assert [len(silo.activations()) for silo in silos] == [10, 10, 10]


@pytest.mark.real
async def test_R325_where_all_silos_are_full_the_error_says_so_of_each(cluster: Cluster) -> None:
    silos = await cluster.start("a", "b", kinds=(Seat,), activation=seating(3))
    await asyncio.gather(*(silos[number % 2].grain(Seat, f"k{number}").where() for number in range(6)))
    with pytest.raises(GrainUnplaceable) as refused:
        await with_timeout(silos[0].grain(Seat, "one more"), 1.0).where()
    text = str(refused.value)
    assert all(f"{silo.name} ({silo.address}): full: 3 of 3 activations" in text for silo in silos)
    assert refused.value.retry_after_s is not None


async def test_R204_what_waits_is_placed_at_once_when_a_full_silo_has_room_again(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Seat,), activation=seating(3))
    seats = [a.grain(Seat, f"k{number}") for number in range(6)]
    await asyncio.gather(*(seat.where() for seat in seats))
    loop = asyncio.get_running_loop()
    for home in ("b", "a"):  # told by a report, and seen here
        waiting = asyncio.create_task(with_timeout(a.grain(Seat, f"waits for {home}"), 60.0).where())
        await asyncio.sleep(20.0)  # by now the pauses between tries are as long as they get
        assert not waiting.done()
        leaver = next(seat for seat in seats if cluster.is_active(seat) and cluster.home(seat) == home)
        began = loop.time()
        await leaver.leave()
        assert await waiting == home
        assert loop.time() - began < AT_ONCE_S
    assert len(a.activations()) == len(b.activations()) == 3


async def test_R204_that_there_is_room_is_told_on_the_change_and_not_for_each_activation_that_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Seat,), activation=seating(50))
    seats = [with_hint(a.grain(Seat, f"k{number}"), "b") for number in range(50)]
    await asyncio.gather(*(seat.where() for seat in seats))
    await cluster.seen(lambda: a.runtime.loads.why_full(b.view.table.rows[1]))
    told: list[tuple[str, Chance]] = []

    def tell(silo: Silo) -> None:
        def on_chance(why: Chance) -> None:
            told.append((silo.name, why))

        monkeypatch.setattr(silo.runtime.router, "on_chance", on_chance)

    for each in (a, b):
        tell(each)
    await asyncio.gather(*(seat.leave() for seat in seats))
    await cluster.seen(lambda: not b.activations())
    await asyncio.sleep(2 * LOAD_PERIOD_S)
    assert sorted(told) == [("a", Chance.FREED), ("b", Chance.FREED)]


async def test_R204_a_silo_that_is_full_and_has_room_by_turns_does_not_say_so_each_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await cluster.start("a", kinds=(Seat,), activation=seating(1))
    told: list[float] = []
    loop = asyncio.get_running_loop()

    def on_chance(_: Chance) -> None:
        told.append(loop.time())

    monkeypatch.setattr(a.runtime.router, "on_chance", on_chance)
    began = loop.time()
    for number in range(100):
        seat = a.grain(Seat, f"k{number}")
        await seat.where()
        await seat.leave()
        await cluster.seen(lambda: not a.activations())
    assert len(told) <= 1 + (loop.time() - began) / CAPACITY_TOLD_EVERY_S


async def test_R204_room_that_comes_again_before_the_next_word_is_due_is_told_of_too(cluster: Cluster) -> None:
    """Of two calls that wait, one takes the place and gives it back at once; the other one hears of that."""
    (a,) = await cluster.start("a", kinds=(Seat,), activation=seating(1))
    loop = asyncio.get_running_loop()
    first = a.grain(Seat, "first")
    await first.where()
    for number in range(10):
        waiting = [with_timeout(a.grain(Seat, f"{number} {each}"), 60.0) for each in "xy"]
        calls = [asyncio.create_task(each.where()) for each in waiting]
        await asyncio.sleep(20.0 + number / 10)  # by now the pauses between tries are as long as they get
        await first.leave()
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        began = loop.time()
        await waiting[calls.index(done.pop())].leave()
        await asyncio.gather(*calls)
        assert loop.time() - began < CAPACITY_TOLD_EVERY_S + AT_ONCE_S
        (first,) = (each for each in waiting if cluster.is_active(each))


async def test_a_silo_that_is_taken_to_have_room_and_is_full_refuses_and_the_call_goes_elsewhere(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Seat,), activation=seating(3))
    await asyncio.gather(*(with_hint(b.grain(Seat, f"k{number}"), "b").where() for number in range(3)))
    began = asyncio.get_running_loop().time()
    for number in range(3):
        a.runtime.loads.forget(b.address)  # a knows nothing of that
        assert await with_hint(a.grain(Seat, f"more {number}"), "b").where() == "a"
    assert asyncio.get_running_loop().time() - began < AT_ONCE_S
    a.runtime.loads.forget(b.address)
    refused = with_timeout(with_hint(a.grain(Seat, "too many"), "b"), 1.0)
    with pytest.raises(NotExecuted, match=r"full: 3 of 3 activations"):
        await refused.where()
    assert (len(a.activations()), len(b.activations())) == (3, 3)


@grain(kind="passer-by")
class PasserBy(Grain):
    """Takes a seat for one call, and leaves it to whoever comes next."""

    async def on_activate(self) -> None:
        await asyncio.sleep(random.Random(self.key).random() * ACTIVATION_S)

    async def pass_by(self) -> str:
        self.deactivate()
        return self.silo


async def all_pass_by(cluster: Cluster, seed: int, count: int, hops_max: int) -> None:
    """So many calls at once, to a third as many grains, of three silos with room for ten each, one at a time."""
    settings, calls_settings = taking(1, activations_max=10), CallSettings(hops_max=hops_max)
    silos = await cluster.start("a", "b", "c", kinds=(PasserBy,), activation=settings, calls=calls_settings)
    assert isinstance(cluster.stand, MemoryStand)
    for one, other in itertools.combinations("abc", 2):
        cluster.stand.network.delay(one, other, (0.0001, 0.02))
    rng = random.Random(seed)
    calls: list[asyncio.Task[str]] = []
    for _ in range(count):
        seat = with_hint(rng.choice(silos).grain(PasserBy, f"k{rng.randrange(count // 3)}"), rng.choice("abc"))
        calls.append(asyncio.create_task(with_timeout(seat, 600.0).pass_by()))
        if rng.random() < 0.1:
            await asyncio.sleep(rng.random() * 0.1)
    assert len(await asyncio.gather(*calls)) == count


@pytest.mark.parametrize("seed", [5, 7, 12, 54])  # in which calls were ended by hops while they waited for room
async def test_R204_calls_that_silos_with_hardly_any_room_send_to_each_other_wait_until_they_are_served(
    cluster: Cluster, seed: int
) -> None:
    """However often a call is sent on: that it is kept from a place until its deadline has not come is no end of it."""
    await all_pass_by(cluster, seed, 300, hops_max=3)


@pytest.mark.parametrize("seed", range(20))
async def test_R204_a_call_that_may_be_sent_on_no_further_waits_at_its_callers_silo_until_it_is_served(
    cluster: Cluster, seed: int
) -> None:
    """In nearly all of these some calls end as TooManyHops where the hop limit ends calls."""
    await all_pass_by(cluster, seed, 99, hops_max=1)


@pytest.mark.real
async def test_a_move_to_a_full_silo_is_refused_with_the_reason_and_the_grain_stays(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Seat,), activation=seating(3))
    await asyncio.gather(*(with_hint(a.grain(Seat, f"k{number}"), "b").where() for number in range(3)))
    seat = with_hint(a.grain(Seat, "mover"), "a")
    assert await seat.where() == "a"
    client = await cluster.client()
    outcome = await client.migrate(seat, to="b")
    assert not outcome.moved
    assert "b is full: 3 of 3 activations" in outcome.why
    unnamed = await client.migrate(seat)
    assert (unnamed.status, unnamed.moved) == (MoveStatus.REFUSED, False)
    assert "full: 3 of 3 activations" in unnamed.why
    assert await seat.where() == "a"
    assert len(b.activations()) == 3
