"""Which grains go: those that talk to each other together, then the coldest; and never one that is to stay."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import GrainId
from silo.migration.rebalancing.clusters import Cluster, GrainLoad, Neighbour, find_clusters
from silo.migration.rebalancing.plan import Transfer
from silo.migration.rebalancing.victims import Victims, coldest_first, pick_victims
from tests.unit.migration.rebalancing.world import address

HERE, THERE, ELSEWHERE = address(0), address(1), address(2)


def grain(name: object) -> GrainId:
    return GrainId.of("g", str(name))


def load(name: object, activity: float = 0.0, weight: int = 1, *, is_busy: bool = False, stays: str = "") -> GrainLoad:
    return GrainLoad(grain(name), activity, weight, is_busy, stays)


def to(amount: int, receiver: int = 1) -> Transfer:
    return Transfer(HERE, address(receiver), amount)


def names(victims: Iterable[Victims]) -> list[list[str]]:
    return [[each.key for each in one.grains] for one in victims]


def game(name: str, players: int, rate: float = 1.0) -> dict[GrainId, list[Neighbour]]:
    """A hub and its players, who talk to nobody else."""
    table = {grain(name): [Neighbour(grain(f"{name}-{n}"), rate, HERE) for n in range(players)]}
    table.update({grain(f"{name}-{n}"): [Neighbour(grain(name), rate, HERE)] for n in range(players)})
    return table


def loads_of(table: Iterable[GrainId], activity: float = 1.0) -> list[GrainLoad]:
    return [GrainLoad(each, activity) for each in table]


def test_the_coldest_go_and_no_more_of_them_are_looked_at_than_needed() -> None:
    looked_at: list[str] = []

    def grains() -> Iterator[GrainLoad]:
        for number in range(1000):
            looked_at.append(str(number))
            yield load(number, activity=float(number))

    assert names(pick_victims([to(3)], grains())) == [["0", "1", "2"]]
    assert len(looked_at) == 3


@given(activities=st.lists(st.floats(0, 100), max_size=40))
@settings(max_examples=60, deadline=None)
def test_coldest_first_is_in_order(activities: list[float]) -> None:
    told = [one.activity for one in coldest_first(load(n, activity) for n, activity in enumerate(activities))]
    assert told == sorted(activities)


def test_whole_clusters_go_before_the_coldest() -> None:
    table = game("lobby", 8, rate=20.0)
    grains = [*loads_of(table, activity=50.0), *(load(n) for n in range(20))]
    clusters = find_clusters(HERE, grains, table)
    (victims,) = pick_victims([to(10)], coldest_first(grains), clusters=clusters)
    assert {each.key for each in victims.grains[:9]} == {each.key for each in table}
    assert victims.in_clusters == 9
    assert len(victims.grains) == 10


def test_a_cluster_that_does_not_fit_is_not_torn_while_others_can_go() -> None:
    table = game("lobby", 8)
    grains = [*loads_of(table), *(load(n, activity=9.0) for n in range(5))]
    clusters = find_clusters(HERE, grains, table)
    victims = pick_victims([to(5)], coldest_first(grains), clusters=clusters)
    assert not {each.key for each in table} & set(names(victims)[0])
    (torn,) = pick_victims([to(7)], coldest_first(grains), clusters=clusters)
    assert torn.amount == 7


def test_no_cluster_is_torn_where_more_is_to_follow() -> None:
    table = game("lobby", 8)
    grains = [*loads_of(table), *(load(n, activity=9.0) for n in range(5))]
    clusters = find_clusters(HERE, grains, table)
    (first,) = pick_victims([Transfer(HERE, THERE, 7, rest=20)], coldest_first(grains), clusters=clusters)
    assert {each.key for each in first.grains} == {str(n) for n in range(5)}
    (stuck,) = pick_victims([Transfer(HERE, THERE, 7, rest=20)], coldest_first(loads_of(table)), clusters=clusters)
    assert stuck.amount == 7  # rather than nothing


def test_a_cluster_goes_where_its_other_half_is() -> None:
    table = game("lobby", 3)
    table[grain("lobby")] += [Neighbour(grain(f"far-{n}"), 1.0, ELSEWHERE) for n in range(4)]
    clusters = find_clusters(HERE, loads_of(table), table)
    nowhere, there = pick_victims([to(4, 1), to(4, 2)], [], clusters=clusters)
    assert (nowhere.amount, there.amount) == (0, 4)


def test_the_cluster_with_the_least_cut_for_each_grain_goes_first() -> None:
    close, loose = game("close", 4), game("loose", 4)
    loose[grain("loose")] += [Neighbour(grain("neighbour"), 1.5, HERE)]
    grains = loads_of({**close, **loose})
    clusters = find_clusters(HERE, [*grains, load("neighbour")], {**close, **loose})
    assert [len(one.grains) for one in clusters] == [5, 6]
    (victims,) = pick_victims([to(5)], [], clusters=reversed(clusters))
    assert {each.key for each in victims.grains} == {each.key for each in close}


def test_grains_that_talk_more_to_the_rest_than_to_each_other_are_no_cluster() -> None:
    rng = random.Random(3)
    everyone = [grain(n) for n in range(400)]
    table = {each: [Neighbour(other, 1.0, HERE) for other in rng.sample(everyone, 12)] for each in everyone}
    clusters = find_clusters(HERE, loads_of(everyone), table)
    assert sum(len(one.grains) for one in clusters) < 40


def test_communities_are_found_whole_through_the_noise_between_them() -> None:
    rng = random.Random(3)
    table: dict[GrainId, list[Neighbour]] = {}
    for number in range(400):
        first = number - number % 20
        near = [Neighbour(grain(first + (number - first + step) % 20), 1.0, HERE) for step in (1, 2, 18, 19)]
        far = [Neighbour(grain(rng.randrange(400)), 0.1, HERE) for _ in range(4)]
        table[grain(number)] = near + far
    clusters = find_clusters(HERE, loads_of(table), table)
    found = [{int(each.grain.key) // 20 for each in one.grains} for one in clusters]
    assert (
        sum(len(one.grains) == 20 and len(community) == 1 for one, community in zip(clusters, found, strict=True)) >= 18
    )


def test_a_celebrity_whom_everybody_writes_to_does_not_tear_communities() -> None:
    celebrity = grain("celebrity")
    table: dict[GrainId, list[Neighbour]] = {celebrity: [Neighbour(grain(n), 1.5, HERE) for n in range(16)]}
    for number in range(200):
        first = number - number % 20
        near = [Neighbour(grain(first + (number - first + step) % 20), 1.0, HERE) for step in (1, 2, 18, 19)]
        table[grain(number)] = [*near, Neighbour(celebrity, 1.5, HERE)]
    grains = [load("celebrity", activity=400.0), *loads_of(grain(n) for n in range(200))]
    clusters = find_clusters(HERE, grains, table)
    assert sorted(len(one.grains) for one in clusters) == [20] * 10


def test_R417_what_is_not_to_be_moved_stays_and_its_cluster_is_cut_from_it() -> None:
    table = game("lobby", 4)
    grains = [load("lobby", stays="its kind is not migratable"), *loads_of([each for each in table if "-" in each.key])]
    assert find_clusters(HERE, grains, table) == []
    (victims,) = pick_victims([to(10)], coldest_first(grains))
    assert "lobby" not in {each.key for each in victims.grains}
    assert victims.amount == 4


def test_R334_R441_busy_grains_go_too_once_no_idle_ones_are_left() -> None:
    grains = [load("busy", is_busy=True), load("idle")]
    (victims,) = pick_victims([to(2)], coldest_first(grains))
    assert ([each.key for each in victims.grains], victims.busy) == (["idle", "busy"], 1)
    (victims,) = pick_victims([to(2)], coldest_first(grains), allow_busy=False)
    assert [each.key for each in victims.grains] == ["idle"]


def test_R416_cost_is_asked_of_few_and_the_cheapest_of_these_go() -> None:
    asked: list[str] = []

    def cost_of(one: GrainId) -> float | None:
        asked.append(one.key)
        return None if one.key == "0" else 100.0 - float(one.key)

    grains = [load(n, activity=float(n)) for n in range(1000)]
    (victims,) = pick_victims([to(2)], coldest_first(grains), cost_of=cost_of)
    assert [each.key for each in victims.grains] == ["33", "32"]
    assert len(asked) == 34


def test_R416_a_cluster_with_a_member_that_does_not_want_to_stays_whole() -> None:
    table = game("lobby", 4)
    grains = loads_of(table)
    clusters = find_clusters(HERE, grains, table)
    (victims,) = pick_victims([to(5)], [], clusters=clusters, cost_of=lambda one: None if one.key == "lobby-2" else 1.0)
    assert victims.grains == ()


def test_what_costs_more_than_allowed_stays() -> None:
    (victims,) = pick_victims([to(5)], [load(n) for n in range(5)], cost_of=lambda one: float(one.key), cost_max=2.0)
    assert [each.key for each in victims.grains] == ["0", "1", "2"]


def test_by_weight_nothing_goes_that_weighs_more_than_is_left() -> None:
    grains = [load("heavy", weight=80), load("middle", weight=40), load("light", weight=15)]
    (victims,) = pick_victims([to(60)], grains)
    assert ([each.key for each in victims.grains], victims.amount) == (["middle", "light"], 55)


@st.composite
def donors(draw: st.DrawFn) -> tuple[list[Transfer], list[GrainLoad], list[Cluster]]:
    grains = [
        load(
            n,
            draw(st.floats(0, 9)),
            draw(st.integers(1, 5)),
            is_busy=draw(st.booleans()),
            stays=draw(st.sampled_from(["", "", "no"])),
        )
        for n in range(draw(st.integers(0, 30)))
    ]
    table = {
        one.grain: [Neighbour(grain(n), 1.0, HERE) for n in draw(st.lists(st.integers(0, 30), max_size=3))]
        for one in grains
    }
    transfers = [to(draw(st.integers(0, 20)), receiver) for receiver in range(1, draw(st.integers(2, 4)))]
    return transfers, grains, find_clusters(HERE, grains, table, grains_max=draw(st.integers(2, 10)))


@given(donor=donors())
@settings(max_examples=60, deadline=None)
def test_no_grain_goes_twice_nor_beyond_the_transfer_nor_against_its_word(
    donor: tuple[list[Transfer], list[GrainLoad], list[Cluster]],
) -> None:
    transfers, grains, clusters = donor
    by_id = {one.grain: one for one in grains}
    victims = pick_victims(transfers, coldest_first(grains), clusters=clusters)
    gone = [each for one in victims for each in one.grains]
    assert len(set(gone)) == len(gone)
    assert not any(by_id[each].stays for each in gone)
    for transfer, one in zip(transfers, victims, strict=True):
        assert one.transfer is transfer
        assert one.amount == sum(by_id[each].weight for each in one.grains) <= transfer.amount
    if all(one.weight == 1 for one in grains):
        movable = sum(not one.stays for one in grains)
        assert len(gone) == min(movable, sum(transfer.amount for transfer in transfers))


@pytest.mark.parametrize("count", [10_000])
def test_a_donor_of_ten_thousand_picks_its_victims_in_a_fraction_of_a_second(count: int) -> None:
    rng = random.Random(1)
    grains = [load(n, rng.random()) for n in range(count)]
    begun = time.process_time()
    (victims,) = pick_victims([to(250)], coldest_first(grains))
    assert len(victims.grains) == 250
    assert time.process_time() - begun < 0.25
