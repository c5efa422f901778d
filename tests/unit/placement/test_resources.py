"""Placement by what silos have left, and by what they can carry."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.errors import InvalidSettings
from silo.placement.policies import (
    ActivationCountPlacement,
    ConsistentHashPlacement,
    PreferLocalPlacement,
    RandomPlacement,
)
from silo.placement.policy import AttachablePolicy, PlacementPolicy, capacity_in
from silo.placement.resources import ResourceOptimizedPlacement, Resources, ResourceWeights
from tests.unit.placement.world import Silo, address, cluster, grains, offer, place_all, row, spread, view_of

GRAIN = grains(1)[0]


def attached(policy: ResourceOptimizedPlacement, used: dict[int, Resources], silos: int = 2) -> Silo:
    silo = Silo(address(0), cluster(silos))
    silo.used = {address(number): one for number, one in used.items()}
    for number in range(1, silos):
        silo.reported[address(number)] = 100
    silo.own_load = 100
    policy.attach(silo)
    return silo


@pytest.mark.parametrize(
    ("here", "there", "chosen"),
    [
        (Resources(cpu=0.9, memory=0.5, lag_s=0.0), Resources(cpu=0.2, memory=0.5, lag_s=0.0), 1),
        (Resources(cpu=0.2, memory=0.9, lag_s=0.0), Resources(cpu=0.2, memory=0.1, lag_s=0.0), 1),
        (Resources(cpu=0.2, memory=0.1, lag_s=0.4), Resources(cpu=0.2, memory=0.1, lag_s=0.0), 1),
        (Resources(cpu=0.1, memory=0.1, lag_s=0.0), Resources(cpu=0.9, memory=0.1, lag_s=0.0), 0),
        (
            Resources(cpu=0.9, memory=0.1, lag_s=0.0),
            Resources(memory=0.1, lag_s=0.0),
            0,
        ),  # what one does not say: left out
    ],
)
def test_R468_the_one_with_the_most_left_wins(here: Resources, there: Resources, chosen: int) -> None:
    policy = ResourceOptimizedPlacement()
    attached(policy, {0: here, 1: there})
    assert policy.choose(GRAIN, offer(cluster(2), random.Random(1)), address(0)) == address(chosen)


def test_R468_a_slightly_better_silo_is_no_reason_to_leave() -> None:
    policy, strict = ResourceOptimizedPlacement(), ResourceOptimizedPlacement(local_margin=0.0)
    used = {0: Resources(cpu=0.55), 1: Resources(cpu=0.50)}
    for each in (policy, strict):
        attached(each, used)
    view = offer(cluster(2), random.Random(1))
    assert policy.choose(GRAIN, view, address(0)) == address(0)
    assert strict.choose(GRAIN, view, address(0)) == address(1)


def test_R319_a_burst_between_reports_does_not_all_go_to_the_one_with_the_most_left() -> None:
    policy = ResourceOptimizedPlacement()
    attached(policy, {number: Resources(cpu=0.1 if number == 3 else 0.6, memory=0.5) for number in range(4)}, silos=4)
    placed = place_all(policy, 400, offer(cluster(4), random.Random(1)), address(0))
    assert placed[address(3)] == max(placed.values())
    assert placed[address(3)] < 0.55 * 400


def test_R317_without_reports_of_resources_it_evens_out_counts() -> None:
    policy = ResourceOptimizedPlacement(local_margin=0.0)
    policy.attach(Silo(address(0), cluster(10)))
    assert spread(place_all(policy, 1000, offer(cluster(10), random.Random(1)), address(0)), 10) < 1.1


def test_R322_its_teardown_leaves_nothing_behind() -> None:
    policy = ResourceOptimizedPlacement()
    silo = Silo(address(0), cluster(2))
    policy.attach(silo)()
    assert silo.is_quiet()
    assert policy.scores(GRAIN, offer(cluster(2), random.Random(1)), address(0)) == {}


def test_R468_scores_tell_how_much_is_used() -> None:
    policy = ResourceOptimizedPlacement(weights=ResourceWeights(cpu=1.0, memory=0.0, lag=0.0, count=0.0))
    attached(policy, {0: Resources(cpu=0.7), 1: Resources(cpu=0.2)})
    scores = policy.scores(GRAIN, offer(cluster(2), random.Random(1)), address(0))
    assert scores == {address(0): pytest.approx(0.7), address(1): pytest.approx(0.2)}


@pytest.mark.parametrize(
    "settings", [{"choose_out_of": 0}, {"local_margin": -0.1}, {"local_margin": 2.0}, {"refresh_s": 0.0}]
)
def test_its_settings_out_of_range_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(settings))):
        ResourceOptimizedPlacement(**settings)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - as callers may


@pytest.mark.parametrize("weights", [{"cpu": -1.0}, {"cpu": 0.0, "memory": 0.0, "lag": 0.0, "count": 0.0}])
def test_weights_that_weigh_nothing_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(InvalidSettings, match="weights"):
        ResourceWeights(**weights)


# Silos that can carry more than others

BIG = view_of([row(0, meta={"capacity": "4"}), *(row(number) for number in range(1, 7))])


def counted(policy: PlacementPolicy, count: int) -> Counter[SiloAddress]:
    return place_all(policy, count, offer(BIG, random.Random(5)), address(1))


@pytest.mark.parametrize(
    ("policy", "within"),
    [
        (RandomPlacement(), 0.15),
        (ActivationCountPlacement(), 0.05),
        (ResourceOptimizedPlacement(local_margin=0.0), 0.05),
        (ConsistentHashPlacement(), 0.15),
        (ConsistentHashPlacement(load_bound=1.05), 0.06),
    ],
    ids=["random", "activation-count", "resource-optimized", "consistent-hash", "bounded"],
)
def test_R369_a_silo_that_states_four_times_the_capacity_gets_four_times_as_much(
    policy: PlacementPolicy, within: float
) -> None:
    if isinstance(policy, AttachablePolicy):
        policy.attach(Silo(address(1), BIG))
    placed = counted(policy, 3000)
    assert abs(placed[address(0)] / 3000 - 0.4) < within * 0.4


def test_R308_a_cap_is_relative_to_the_capacity() -> None:
    policy = PreferLocalPlacement(max_local_ratio=1.0)
    policy.attach(Silo(address(0), BIG))
    placed = place_all(policy, 1000, offer(BIG, random.Random(5)), address(0))
    assert 380 <= placed[address(0)] <= 440


def test_R309_more_capacity_only_takes_grains_and_less_only_gives_them() -> None:
    rule, rng = ConsistentHashPlacement(), random.Random(0)
    even = offer(view_of(row(number) for number in range(5)), rng)
    grown = offer(view_of([row(0, meta={"capacity": "2"}), *(row(number) for number in range(1, 5))]), rng)
    before, after = ({g: rule.choose(g, view, None) for g in grains(500)} for view in (even, grown))
    assert all(after[g] in (before[g], address(0)) for g in before)


@pytest.mark.parametrize(
    ("stated", "capacity"),
    [("2", 2.0), ("0.5", 0.5), ("much", 1.0), ("-3", 1.0), ("0", 1.0), ("nan", 1.0), ("inf", 1.0)],
)
def test_a_capacity_that_is_none_counts_as_one(stated: str, capacity: float) -> None:
    assert capacity_in({"capacity": stated}) == capacity
