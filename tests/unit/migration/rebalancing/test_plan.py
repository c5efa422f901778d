"""The transfer plan: as few moves as can be, nothing lost, nobody overfilled, and no reason left untold."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.migration.rebalancing.loads import LoadSnapshot, Measure, SiloLoad
from silo.migration.rebalancing.plan import TransferPlan, make_plan
from silo.migration.rebalancing.shares import Bounds, fair_shares
from tests.unit.migration.rebalancing.world import address, carried_out, fewest_moves, silo, snapshot

ALL = 2**53
COUNTS = st.lists(st.integers(0, 500), min_size=2, max_size=20)


def plan_of(loads: LoadSnapshot, measure: Measure = Measure.COUNT, budget: int = ALL) -> TransferPlan:
    return make_plan(loads, measure, budget_grains=budget)


@given(counts=COUNTS)
@settings(max_examples=60, deadline=None)
def test_R444_a_plan_needs_the_fewest_moves_and_leaves_nobody_a_grain_from_the_mean(counts: list[int]) -> None:
    plan = plan_of(snapshot(counts))
    after = carried_out(counts, plan)
    assert sum(after) == sum(counts)
    assert max(after) - min(after) <= 1
    assert plan.amount == plan.needed == fewest_moves(counts)


def test_R444_the_third_silo_takes_a_third_of_each_and_nothing_else_moves() -> None:
    plan = plan_of(snapshot([300, 300, 0]))
    assert carried_out([300, 300, 0], plan) == [200, 200, 200]
    assert [(each.receiver, each.amount) for each in plan.transfers] == [(address(2), 100), (address(2), 100)]


@given(counts=COUNTS, budget=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_no_silo_gives_and_takes_nor_crosses_its_share_whatever_the_budget(counts: list[int], budget: int) -> None:
    plan = plan_of(snapshot(counts), budget=budget)
    after = carried_out(counts, plan)
    donors = {each.donor for each in plan.transfers}
    assert not donors & {each.receiver for each in plan.transfers}
    assert plan.amount == min(budget, plan.needed)
    for one, before, left in zip(plan.standings, counts, after, strict=True):
        assert min(before, one.share.target) <= left <= max(before, one.share.target)
        assert one.share.floor <= one.share.target <= one.share.ceiling


@given(counts=COUNTS, budgets=st.lists(st.integers(1, 200), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_plans_in_pieces_come_to_the_same_number_of_moves(counts: list[int], budgets: list[int]) -> None:
    now, moved = counts, 0
    for version, budget in enumerate([*budgets, ALL]):
        plan = plan_of(snapshot(now, version), budget=budget)
        now, moved = carried_out(now, plan), moved + plan.amount
    assert moved == fewest_moves(counts)
    assert max(now) - min(now) <= 1


@given(counts=COUNTS)
@settings(max_examples=60, deadline=None)
def test_what_is_balanced_is_left_alone(counts: list[int]) -> None:
    after = carried_out(counts, plan_of(snapshot(counts)))
    assert plan_of(snapshot(after)).transfers == ()


@given(counts=COUNTS, seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_silo_makes_the_same_plan_from_the_same_loads(counts: list[int], seed: int) -> None:
    loads = snapshot(counts)
    shuffled = list(loads.silos)
    random.Random(seed).shuffle(shuffled)
    assert plan_of(msgspec.structs.replace(loads, silos=tuple(shuffled))) == plan_of(loads)


@given(
    silos=st.lists(st.tuples(st.integers(0, 300), st.sampled_from([0.5, 1.0, 2.0, 4.0])), min_size=2, max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_capacities_give_each_silo_its_part(silos: list[tuple[int, float]]) -> None:
    counts, capacities = [count for count, _ in silos], [capacity for _, capacity in silos]
    after = carried_out(counts, plan_of(snapshot(counts, capacities=capacities)))
    assert sum(after) == sum(counts)
    for left, capacity in zip(after, capacities, strict=True):
        assert abs(left - sum(counts) * capacity / sum(capacities)) < 1


@st.composite
def bounded(draw: st.DrawFn) -> Bounds:
    has = draw(st.integers(0, 200))
    least, most = draw(st.integers(0, has)), draw(st.integers(has, 400))
    return Bounds(has, least, most, draw(st.sampled_from([0.5, 1.0, 3.0])))


@given(silos=st.lists(bounded(), min_size=1, max_size=15))
@settings(max_examples=60, deadline=None)
def test_bounds_hold_nothing_is_lost_and_who_is_free_is_within_one_of_an_even_level(silos: list[Bounds]) -> None:
    shares = fair_shares(silos)
    assert sum(one.target for one in shares) == sum(one.has for one in silos)
    assert all(bound.least <= one.target <= bound.most for bound, one in zip(silos, shares, strict=True))
    levels = [
        (one.exact / bound.capacity, bound, one)
        for bound, one in zip(silos, shares, strict=True)
        if bound.least < one.exact < bound.most
    ]
    if levels:
        level = levels[0][0]
        assert all(abs(each - level) < 1e-6 for each, _, _ in levels)
        for bound, one in zip(silos, shares, strict=True):  # who is bound is bound on the right side
            if one.exact == bound.least:
                assert level * bound.capacity <= bound.least + 1e-6 or one.exact == bound.most
            if one.exact == bound.most:
                assert level * bound.capacity >= bound.most - 1e-6 or one.exact == bound.least


@given(counts=COUNTS, budget=st.integers(0, 2000), bite=st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_what_a_budget_does_not_allow_at_once_goes_in_bites(counts: list[int], budget: int, bite: int) -> None:
    plan = make_plan(snapshot(counts), Measure.COUNT, budget_grains=budget, bite_grains=bite)
    assert plan.amount <= min(budget, plan.needed)
    assert plan.amount > min(budget, plan.needed) - bite
    assert all(each.amount >= bite or not each.rest for each in plan.transfers)
    assert len({(each.donor, each.receiver) for each in plan.transfers}) == len(plan.transfers)


def test_a_silo_that_must_not_take_takes_nothing_and_the_others_share_the_rest() -> None:
    loads = LoadSnapshot(1, 1, (silo(0, 300), silo(1, 0, no_taking="it is cordoned"), silo(2, 0)))
    plan = plan_of(loads)
    assert carried_out([300, 0, 0], plan) == [150, 0, 150]
    assert "takes nothing: it is cordoned" in plan.explain()


def test_R417_what_may_not_be_moved_stays_and_the_plan_reckons_with_it() -> None:
    loads = LoadSnapshot(1, 1, (silo(0, 300, movable=50), silo(1, 0), silo(2, 0)))
    plan = plan_of(loads)
    assert carried_out([300, 0, 0], plan) == [250, 25, 25]
    assert "may not be moved" in plan.explain()


def test_a_silo_is_filled_no_further_than_it_hosts() -> None:
    loads = LoadSnapshot(1, 1, (silo(0, 300), silo(1, 0, activations_max=20), silo(2, 0)))
    plan = plan_of(loads)
    assert carried_out([300, 0, 0], plan) == [140, 20, 140]
    assert "hosts at most 20" in plan.explain()


def test_R331_a_silent_silo_is_left_out_and_named() -> None:
    loads = LoadSnapshot(1, 1, (silo(0, 300), silo(1, 100), silo(2, 7, silent="no report for 5 s")))
    plan = plan_of(loads)
    assert carried_out([300, 100, 7], plan) == [200, 200, 7]
    assert plan.left_out == (("silo-2", "no report for 5 s"),)


def test_what_is_on_its_way_counts_where_it_goes() -> None:
    loads = LoadSnapshot(1, 1, (silo(0, 300, leaving=100), silo(1, 100, arriving=100)))
    assert plan_of(loads).transfers == ()


def test_by_memory_bytes_are_evened_out_and_not_grains() -> None:
    loads = LoadSnapshot(1, 1, (silo(0, 10, memory_bytes=8_000_000), silo(1, 1000, memory_bytes=2_000_000)))
    (transfer,) = plan_of(loads, Measure.MEMORY).transfers
    assert (transfer.donor, transfer.amount) == (address(0), 3_000_000)


def test_a_budget_of_grains_bounds_other_measures_by_the_average_grain() -> None:
    loads = LoadSnapshot(1, 1, (silo(0, 100, weight=1000), silo(1, 100, weight=0)))
    assert plan_of(loads, Measure.WEIGHT, budget=20).amount == 20 * 5


def test_a_plan_explains_itself_and_names_the_loads_that_it_was_made_from() -> None:
    loads = msgspec.structs.replace(snapshot([500, 100]), version=7, view_version=3)
    plan = plan_of(loads, budget=50)
    told = plan.explain()
    assert told.startswith(f"plan {plan.id}, of loads 7 in view 3: by count, spread 1.67")
    assert "50 of the 200 that must move at least: the budget leaves the rest for later" in told
    assert "silo-0: has 500, share 300.0, gives 200" in told
    assert "silo-0 -> silo-1: 50" in told
    assert plan.id != plan_of(msgspec.structs.replace(loads, version=8), budget=50).id


def test_a_plan_travels() -> None:
    plan = plan_of(snapshot([500, 100, 7]))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=TransferPlan) == plan


def test_the_explanation_of_a_big_cluster_stays_readable() -> None:
    assert len(plan_of(snapshot([*range(200)])).explain().splitlines()) < 100


@pytest.mark.parametrize("silos", [100, 1000])
def test_a_plan_for_a_million_grains_on_a_hundred_silos_takes_far_less_than_a_second(silos: int) -> None:
    counts = [1_000_000 // silos + (number % 7 - 3) * 100 for number in range(silos)]
    loads = snapshot(counts)
    begun = time.process_time()
    plan = plan_of(loads)
    assert time.process_time() - begun < 0.5
    assert plan.amount == plan.needed > 0


def test_a_load_with_every_field_at_its_default_can_be_planned_with() -> None:
    assert SiloLoad(address(0), "silo-0", 5).amount(Measure.COUNT) == 5
