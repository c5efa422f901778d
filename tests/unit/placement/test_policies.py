"""What each shipped policy promises."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import GrainId, SiloAddress, stable_hash
from silo.directory.errors import InvalidSettings
from silo.placement.policies import (
    ActivationCountPlacement,
    ConsistentHashPlacement,
    PreferLocalPlacement,
    RandomPlacement,
    rendezvous,
)
from silo.placement.policy import PlacementPolicy, PlacementView
from silo.placement.rules import SHIPPED
from tests.unit.placement.world import Silo, address, cluster, grains, offer, place_all, row, spread, view_of

SHIPPED_POLICIES: list[PlacementPolicy] = [make() for make in SHIPPED.values()]


def names(view: PlacementView) -> dict[SiloAddress, str]:
    return {candidate.silo: candidate.name for candidate in view.candidates}


@pytest.mark.parametrize("policy", SHIPPED_POLICIES, ids=lambda policy: policy.name)
@given(silos=st.integers(1, 12), seed=st.integers(0, 2**32), here=st.integers(0, 20))
@settings(max_examples=30)
def test_R314_R374_a_choice_is_a_candidate_and_the_seed_reproduces_it(
    policy: PlacementPolicy, silos: int, seed: int, here: int
) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    first, second = (offer(cluster(silos), random.Random(seed)) for _ in range(2))

    once = [policy.choose(grain, first, address(here)) for grain in grains(20)]
    again = [policy.choose(grain, second, address(here)) for grain in grains(20)]

    assert once == again
    assert all(silo in first for silo in once)


@pytest.mark.parametrize("policy", SHIPPED_POLICIES, ids=lambda policy: policy.name)
def test_R311_a_lone_silo_gets_everything(policy: PlacementPolicy) -> None:
    view = offer(cluster(1), random.Random(1))
    assert set(place_all(policy, 50, view, address(9))) == {address(0)}


@pytest.mark.parametrize("entry_share_of_first", [0.01, 0.8, 1.0])
def test_R306_random_spreads_the_same_whatever_silo_the_calls_enter_through(entry_share_of_first: float) -> None:
    spreads: list[float] = []
    for seed in range(30):
        edge = random.Random(seed + 1000)
        view = offer(cluster(100), random.Random(seed))
        placed: Counter[SiloAddress] = Counter()
        for grain in grains(240):
            local = address(0 if edge.random() < entry_share_of_first else edge.randrange(1, 100))
            placed[RandomPlacement().choose(grain, view, local)] += 1
        spreads.append(spread(placed, 100))
    assert 2.5 < sum(spreads) / len(spreads) < 3.4


def test_R307_prefer_local_keeps_every_grain_where_a_hashing_edge_sends_it() -> None:
    view = offer(cluster(10), random.Random(1))
    policy = PreferLocalPlacement()
    assert all(
        policy.choose(grain, view, address(stable_hash(str(grain)) % 10)) == address(stable_hash(str(grain)) % 10)
        for grain in grains(200)
    )


def test_prefer_local_goes_elsewhere_where_the_local_silo_is_no_candidate() -> None:
    view = offer(cluster(3), random.Random(1))
    placed = place_all(PreferLocalPlacement(), 300, view, address(77))
    assert set(placed) == {address(0), address(1), address(2)}


def test_R308_max_local_sends_the_rest_to_less_loaded_silos() -> None:
    paper = cluster(4)
    silo = Silo(address(0), paper)
    policy = PreferLocalPlacement(max_local=10)
    policy.attach(silo)
    placed = place_all(policy, 100, offer(paper, random.Random(2)), address(0))
    assert 10 <= placed[address(0)] <= 30
    assert spread(placed, 4) < 1.3


@pytest.mark.parametrize(("ratio", "least", "most"), [(None, 60.0, 90.0), (2.0, 1.0, 5.0)])
def test_R308_a_cap_relative_to_the_mean_undoes_the_concentration_of_a_skewed_edge(
    ratio: float | None, least: float, most: float
) -> None:
    """240 grains, 100 silos, 80 % of the calls enter through one: without a cap it has 80 times the mean."""
    paper = cluster(100)
    silos = [Silo(address(number), paper) for number in range(100)]
    policy = PreferLocalPlacement(max_local_ratio=ratio)
    for silo in silos:
        policy.attach(silo)
    edge, rng = random.Random(5), random.Random(6)
    view = offer(paper, rng)
    placed: Counter[SiloAddress] = Counter()
    for number, grain in enumerate(grains(240)):
        if number % 24 == 0:
            for silo in silos:
                silo.own_load = placed[silo.silo]
                silo.tick()
                for target in placed:
                    silo.hear(target, placed[target])
        entry = silos[0 if edge.random() < 0.8 else edge.randrange(1, 100)]
        placed[policy.choose(grain, view, entry.silo)] += 1
    assert least <= spread(placed, 100) <= most


@given(silos=st.integers(2, 15), added=st.integers(100, 120))
@settings(max_examples=15)
def test_R309_a_new_silo_only_takes_and_a_lost_one_only_gives(silos: int, added: int) -> None:
    policy = ConsistentHashPlacement()
    rng = random.Random(0)
    fewer, more = (
        offer(view_of(rows), rng)
        for rows in (
            [row(number) for number in range(silos)],
            [*(row(number) for number in range(silos)), row(added)],
        )
    )
    before = {grain: policy.choose(grain, fewer, None) for grain in grains(150)}
    after = {grain: policy.choose(grain, more, None) for grain in grains(150)}
    assert all(after[grain] in (before[grain], address(added)) for grain in before)


def test_R309_one_more_of_ten_silos_changes_one_decision_in_eleven() -> None:
    policy, rng = ConsistentHashPlacement(), random.Random(0)
    ten, eleven = offer(cluster(10), rng), offer(cluster(11), rng)
    changed = sum(policy.choose(g, ten, None) != policy.choose(g, eleven, None) for g in grains(3000))
    assert 0.75 / 11 < changed / 3000 < 1.25 / 11


def test_R309_a_restarted_silo_keeps_its_share() -> None:
    policy, rng = ConsistentHashPlacement(), random.Random(0)
    before = offer(view_of(row(number) for number in range(5)), rng)
    after = offer(view_of(row(number, incarnation=7) for number in range(5)), rng)
    for grain in grains(200):
        old, new = policy.choose(grain, before, None), policy.choose(grain, after, None)
        assert names(before)[old] == names(after)[new]


def test_R309_the_hash_is_the_same_in_every_process_and_release() -> None:
    """Python's own hash differs from process to process; these answers were written down once."""
    view = offer(cluster(10), random.Random(0))
    chosen = [ConsistentHashPlacement().choose(grain, view, None) for grain in grains(8)]
    assert chosen == [address(number) for number in (7, 1, 2, 2, 4, 6, 3, 2)]


def test_a_load_bound_keeps_consistent_hash_within_its_multiple_of_the_mean() -> None:
    paper = cluster(20)
    bounded, free = ConsistentHashPlacement(load_bound=1.25), ConsistentHashPlacement()
    bounded.attach(Silo(address(0), paper))
    view = offer(paper, random.Random(0))
    placed = place_all(bounded, 400, view, address(0))
    assert spread(placed, 20) <= 1.3
    assert spread(place_all(free, 400, view, address(0)), 20) > 1.3


@given(seed=st.integers(0, 2**32), silos=st.integers(1, 30))
@settings(max_examples=30)
def test_R316_activation_count_unattached_draws_exactly_as_random(seed: int, silos: int) -> None:
    one, other = offer(cluster(silos), random.Random(seed)), offer(cluster(silos), random.Random(seed))
    counting, drawing = ActivationCountPlacement(), RandomPlacement()
    assert [counting.choose(g, one, address(0)) for g in grains(50)] == [
        drawing.choose(g, other, address(0)) for g in grains(50)
    ]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_R315_a_thousand_choices_between_refreshes_spread_evenly_by_the_pending_delta_alone(seed: int) -> None:
    paper = cluster(10)
    policy = ActivationCountPlacement()
    policy.attach(Silo(address(0), paper))
    placed = place_all(policy, 1000, offer(paper, random.Random(seed)), address(0))
    assert spread(placed, 10) < 1.1


def test_R311_ties_are_broken_at_random() -> None:
    first: Counter[SiloAddress] = Counter()
    for seed in range(200):
        policy = ActivationCountPlacement()
        policy.attach(Silo(address(0), cluster(2)))
        first[policy.choose(grains(1)[0], offer(cluster(2), random.Random(seed)), address(0))] += 1
    assert min(first.values()) > 60


def test_R311_R318_the_less_loaded_of_the_two_wins_and_an_unknown_silo_counts_as_empty() -> None:
    paper = cluster(3)
    silo = Silo(address(0), paper)
    silo.own_load = 50
    silo.reported[address(1)] = 50
    policy = ActivationCountPlacement(choose_out_of=3)
    policy.attach(silo)
    view = offer(paper, random.Random(1))
    assert policy.choose(grains(1)[0], view, address(0)) == address(2)
    assert policy.scores(grains(1)[0], view, address(0)) == {address(0): 50, address(1): 50, address(2): 3}


def test_R320_silos_with_stale_loads_and_no_talk_between_them_still_do_not_herd() -> None:
    """Ten silos place twenty grains each between refreshes: two choices with the pending delta stay near even."""
    paper = cluster(10)
    silos = [Silo(address(number), paper, random.Random(number)) for number in range(10)]
    policy = ActivationCountPlacement()
    for silo in silos:
        policy.attach(silo)
    placed: Counter[SiloAddress] = Counter()
    for number, grain in enumerate(grains(1000)):
        if number % 200 == 0:
            for silo in silos:
                silo.own_load = placed[silo.silo]
                silo.tick()
                for target in placed:
                    silo.hear(target, placed[target])
        decider = silos[number % 10]
        placed[policy.choose(grain, offer(paper, decider.rng), decider.silo)] += 1
    assert spread(placed, 10) < 1.25


def test_S039_a_silo_without_reports_is_neither_favoured_nor_starved() -> None:
    """10,000 activations over four silos stay within 15 % of the mean though one of them never reports."""
    paper = cluster(4)
    silo = Silo(address(0), paper)
    policy = ActivationCountPlacement()
    policy.attach(silo)
    view = offer(paper, random.Random(3))
    placed: Counter[SiloAddress] = Counter()
    for number, grain in enumerate(grains(10_000)):
        if number % 100 == 0:
            silo.own_load = placed[address(0)]
            silo.tick()
            for target in (address(1), address(2)):
                silo.hear(target, placed[target])
        placed[policy.choose(grain, view, address(0))] += 1
    assert all(abs(placed[one.silo] - 2500) < 0.15 * 2500 for one in view.candidates)


def test_S039_a_new_empty_silo_is_not_flooded() -> None:
    """500 activations arrive between refreshes while three silos have 1,000 each and a fourth is new."""
    paper = cluster(4)
    silo = Silo(address(0), paper)
    silo.own_load = 1000
    silo.reported = {address(1): 1000, address(2): 1000}
    policy = ActivationCountPlacement()
    policy.attach(silo)
    placed = place_all(policy, 500, offer(paper, random.Random(4)), address(0))
    assert 0.25 < placed[address(3)] / 500 < 0.6


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: ActivationCountPlacement(choose_out_of=0), "choose_out_of"),
        (lambda: ActivationCountPlacement(refresh_s=0), "refresh_s"),
        (lambda: PreferLocalPlacement(max_local=-1), "max_local"),
        (lambda: PreferLocalPlacement(max_local_ratio=0.5), "max_local_ratio"),
        (lambda: ConsistentHashPlacement(load_bound=1), "load_bound"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(build: object, said: str) -> None:
    assert callable(build)
    with pytest.raises(InvalidSettings, match=said):
        build()


def test_the_policy_of_ones_own_in_the_docs_keeps_a_tenant_on_three_silos() -> None:
    page = (Path(__file__).parents[3] / "docs" / "placement.md").read_text(encoding="utf-8")
    source = page.partition("### A policy of your own")[2].partition("```python\n")[2].partition("\n\n\n@grain")[0]
    names: dict[str, Any] = {"GrainId": GrainId, "rendezvous": rendezvous}
    exec(source, names)  # noqa: S102 - the page is our own
    view = offer(cluster(10), random.Random(1))
    placed = Counter(names["ByTenant"]().choose(GrainId.of("cart", f"acme/{n}"), view, None) for n in range(300))
    assert len(placed) == 3
    assert len(source.splitlines()) <= 20
