"""The cluster's own rule for an edge: bounded, sticky, and the same as the silos'."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.errors import InvalidSettings
from silo.placement.edge import EdgeRoutes
from silo.placement.policies import ConsistentHashPlacement
from tests.unit.placement.world import cluster, grains, offer

NAMES = [f"silo-{number}" for number in range(10)]


def test_R310_without_a_bound_it_is_the_clusters_own_rule() -> None:
    edge, rule = EdgeRoutes(NAMES, load_bound=None), ConsistentHashPlacement()
    view = offer(cluster(10), random.Random(0))
    names = {one.silo: one.name for one in view.candidates}
    assert all(edge.route(grain) == names[rule.choose(grain, view, None)] for grain in grains(300))


def test_R310_with_a_bound_no_silo_gets_more_than_its_multiple_of_the_mean() -> None:
    edge = EdgeRoutes((f"silo-{number}" for number in range(100)), grains_expected=240)
    placed = Counter(edge.route(grain) for grain in grains(240))
    assert max(placed.values()) <= 3


def test_R310_a_grain_keeps_its_silo_when_others_come_and_is_routed_anew_when_it_is_gone() -> None:
    edge = EdgeRoutes(NAMES)
    before = {grain: edge.route(grain) for grain in grains(400)}
    edge.members([*NAMES, "silo-new"])
    assert {grain: edge.route(grain) for grain in grains(400)} == before
    edge.members([name for name in NAMES if name != "silo-3"])
    after = {grain: edge.route(grain) for grain in grains(400)}
    assert {grain for grain in before if before[grain] != after[grain]} == {
        grain for grain in before if before[grain] == "silo-3"
    }
    assert "silo-3" not in after.values()


@given(capacities=st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_R310_capacities_bound_each_silo_by_its_own_share(capacities: list[float]) -> None:
    silos = {f"silo-{number}": capacity for number, capacity in enumerate(capacities)}
    edge = EdgeRoutes(silos)
    placed = Counter(edge.route(grain) for grain in grains(120))
    for name, capacity in silos.items():
        assert placed[name] <= 1.25 * 120 * capacity / sum(capacities) + 1


def test_R310_its_memory_is_bounded() -> None:
    edge = EdgeRoutes(NAMES, grains_max=50)
    for grain in grains(500):
        edge.route(grain)
    assert len(edge._routes) == edge._counts.total() == 50  # pyright: ignore[reportPrivateUsage] - what it keeps


def test_an_edge_without_silos_or_with_a_bound_below_one_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="at least one silo"):
        EdgeRoutes([])
    with pytest.raises(InvalidSettings, match="load_bound"):
        EdgeRoutes(NAMES, load_bound=1.0)
