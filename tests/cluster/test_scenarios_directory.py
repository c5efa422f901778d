"""What can go wrong with the directory, as the scenarios of that kind tell it; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio
import random
from collections import Counter as Tally

import pytest

from silo.directory import memory_membership
from silo.directory.errors import DirectoryUnavailable
from silo.directory.memory_directory import DirectoryCall
from silo.grain import Grain, grain, soft_state
from silo.host import Silo
from silo.reference import grain_id, with_hint, with_timeout
from silo.routing.router import Router
from tests.cluster.clusters import Cluster, MemoryStand
from tests.cluster.mortal import MortalCluster, simulated
from tests.cluster.stage import Stage, gate, say

ABC = ("a", "b", "c")


@grain(kind="place")
class Place(Grain):
    """Says when it begins, and where it is."""

    calls: int = soft_state(default=0)

    async def on_activate(self) -> None:
        say(f"{self.key} begins")

    async def where(self) -> str:
        self.calls += 1
        return self.silo

    async def leave(self) -> None:
        self.deactivate()


async def placed_at(silo: Silo, count: int, name: str) -> list[Place]:
    """So many grains on the silo of that name, known to the one that asks."""
    places = [silo.grain(Place, f"{name} {number}") for number in range(count)]
    assert set(await asyncio.gather(*(with_hint(place, name).where() for place in places))) == {name}
    return places


# ------------------------------------------------------------------------------------------------ answers that are lost


@simulated
async def test_S014_registrations_whose_answers_are_lost_leave_no_row_without_its_activation(
    mortal: MortalCluster, stage: Stage
) -> None:
    rng = random.Random(14)
    await mortal.start(*ABC, kinds=(Place,))
    lost = 0

    async def lose_some(call: DirectoryCall) -> None:
        nonlocal lost
        if call == "register" and rng.random() < 0.05:
            lost += 1
            raise DirectoryUnavailable("the answer was lost")

    mortal.world.after = dict.fromkeys(ABC, lose_some)
    client = await mortal.client()
    places = [client.grain(Place, str(number)) for number in range(2_000)]
    for first in range(0, len(places), 10):  # many small batches: each of them may be lost
        assert set(await asyncio.gather(*(place.where() for place in places[first : first + 10]))) <= set(ABC)
    assert lost > 10
    mortal.assert_rows_match()
    assert Tally(stage.lines) == {f"{place} begins": 1 for place in range(len(places))}


# ----------------------------------------------------------------------------------- silos that the table does not know


@simulated
async def test_S015_rows_of_a_silo_that_the_table_has_forgotten_are_replaced_by_the_first_call(
    mortal: MortalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_membership, "DEAD_ROWS_KEPT", 0)
    a, b, c = await mortal.start(*ABC, kinds=(Place,))
    places = await placed_at(b, 100, "a")
    mortal.world.without_directory |= {"b", "c", "d"}  # so that nobody sweeps
    dead = a.address
    mortal.kill_now("a")
    await mortal.seen(lambda: not b.view.is_alive(dead) and not c.view.is_alive(dead))
    await mortal.start("d", kinds=(Place,))  # old rows go when the table changes
    assert all(row.silo != dead for row in mortal.world.table.table.rows)
    await mortal.seen(lambda: b.view.row(dead) is None and c.view.row(dead) is None)
    mortal.world.without_directory.clear()
    assert {entry.silo for entry in mortal.world.rows.all()} == {dead}
    assert set(await asyncio.gather(*(with_timeout(place, 2.0).where() for place in places))) <= {"b", "c", "d"}
    mortal.assert_rows_match()


@simulated
async def test_S015_a_row_of_a_silo_that_is_newer_than_ones_view_is_not_evicted(mortal: MortalCluster) -> None:
    _, _, c = await mortal.start(*ABC, kinds=(Place,))
    client = await mortal.client()
    mortal.world.cut_lease("c")
    d = await mortal.start_one("d", kinds=(Place,))
    place = client.grain(Place, "k")
    assert await with_hint(d.grain(Place, "k"), "d").where() == "d"
    entry = mortal.world.rows.look_up(grain_id(place))
    assert entry is not None
    assert entry.silo == d.address
    assert c.view.row(d.address) is None
    asking = asyncio.create_task(c.grain(Place, "k").where())
    await asyncio.sleep(1.0)
    assert not asking.done()  # it will not go by what it does not know
    mortal.world.mend_leases()
    assert await asking == "d"
    assert mortal.world.rows.look_up(grain_id(place)) == entry


# ---------------------------------------------------------------------------------------------- removals that come late


@simulated
async def test_S016_the_late_removal_of_a_frozen_silo_leaves_the_newer_row_and_its_activation(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, b, c = await mortal.start(*ABC, kinds=(Place,))
    (place,) = await placed_at(c, 1, "a")
    clients = [await mortal.client() for _ in range(4)]
    removed: list[str] = []

    async def hold(call: DirectoryCall) -> None:
        if call == "unregister":
            say("removal held")
            await gate("removal")

    async def note(call: DirectoryCall) -> None:
        removed.append(call)

    mortal.world.before["a"], mortal.world.after["a"] = hold, note
    await place.leave()
    await stage.heard("removal held")
    dead = a.address
    mortal.freeze("a")
    await mortal.seen(lambda: b.view.is_dead(dead) and c.view.is_dead(dead))
    assert await with_hint(place, "b").where() == "b"
    entry = mortal.world.rows.look_up(grain_id(place))
    stage.gate("removal").open()
    mortal.thaw("a")
    answers = await asyncio.gather(*(client.grain(Place, place_key(place)).where() for client in clients * 25))
    await mortal.seen(lambda: "unregister" in removed)
    assert set(answers) == {"b"}
    assert mortal.world.rows.look_up(grain_id(place)) == entry
    assert stage.lines.count(f"{place_key(place)} begins") == 2


def place_key(place: Place) -> str:
    return grain_id(place).key


# --------------------------------------------------------------------------------------------------------- many at once


@simulated
async def test_S017_silos_that_start_together_and_callers_that_rush_in_see_one_activation(
    mortal: MortalCluster, stage: Stage
) -> None:
    keys = [f"singleton {number}" for number in range(20)]

    async def start(name: str) -> list[str]:
        """What an application does as soon as its silo has started."""
        silo = await mortal.start_one(name, kinds=(Place,))
        return await asyncio.gather(*(silo.grain(Place, key).where() for key in keys))

    client = mortal.unopened_client([f"{name}:7000" for name in ABC])
    await client.open()
    rushing = [asyncio.create_task(client.grain(Place, key).where()) for key in keys for _ in range(10)]
    answers = await asyncio.gather(*(start(name) for name in ABC))
    assert answers[0] == answers[1] == answers[2]
    assert await asyncio.gather(*rushing) == [home for home in answers[0] for _ in range(10)]
    assert Tally(stage.lines) == {f"{key} begins": 1 for key in keys}
    mortal.assert_rows_match()


# --------------------------------------------------------------------------------------------------------- stale caches


class Forwards:
    """Counts the calls that each silo has forwarded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_silo: Tally[str] = Tally()
        hand_on = Router._hand_on  # pyright: ignore[reportPrivateUsage] - the one place that forwards

        def counted(router: Router, call: object, silo: object, entry: object) -> None:
            self.by_silo[router.me.endpoint] += 1
            hand_on(router, call, silo, entry)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - passed on

        monkeypatch.setattr(Router, "_hand_on", counted)


async def test_S019_after_a_move_each_caller_is_forwarded_once_and_goes_direct_from_then_on(
    monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    stand = MemoryStand()
    cluster = Cluster(stand)
    names = [f"s{number}" for number in range(10)]
    silos = await cluster.start(*names, kinds=(Place,))
    callers = [silo.grain(Place, "k") for silo in silos[2:]]
    await with_hint(callers[0], "s0").where()
    assert {await caller.where() for caller in callers} == {"s0"}
    forwards = Forwards(monkeypatch)

    assert (await silos[0].migrate(callers[0], to="s1")).moved
    for _ in range(100):
        assert {await caller.where() for caller in callers} == {"s1"}
    assert set(forwards.by_silo) <= {"s0:7000"}
    assert forwards.by_silo.total() <= len(callers)

    forwards.by_silo.clear()
    for number in range(9):
        assert (await silos[0].migrate(callers[0], to=f"s{number % 2}")).moved
    asked = stand.directory_calls.count("lookup")
    assert {await with_timeout(caller, 1.0).where() for caller in callers} == {"s0"}
    assert 0 < forwards.by_silo.total() <= len(callers)
    assert stand.directory_calls.count("lookup") - asked <= len(callers)
    await cluster.close()


@simulated
async def test_S021_a_newcomer_costs_the_directory_nothing_and_a_death_activates_nothing(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, b = await mortal.start("a", "b", kinds=(Place,))
    own, lost = await placed_at(a, 1_000, "a"), await placed_at(a, 1_000, "b")
    asked = mortal.world.directory_calls
    asked.clear()
    await mortal.start("c", kinds=(Place,))
    await asyncio.sleep(10.0)
    assert asked == []

    loop = asyncio.get_running_loop()
    dead = b.address
    mortal.kill_now("b")
    slowest = 0.0
    while any(entry.silo == dead for entry in mortal.world.rows.all()):
        began = loop.time()
        await own[0].where()
        slowest = max(slowest, loop.time() - began)
        await asyncio.sleep(0.01)
    assert slowest < 0.01
    assert asked.count("register") == 0
    assert len(asked) < 100  # in batches: ten requests for each of them would be ten times as many
    assert len(mortal.placed()) == len(own)
    assert stage.lines.count("b 0 begins") == 1
    assert await lost[0].where() in ("a", "c")
    assert stage.lines.count("b 0 begins") == 2
    assert len(mortal.placed()) == len(own) + 1
