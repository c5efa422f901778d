"""The promise that two silos never serve one grain, and that none gives one up for nothing, when rows are lost."""

from __future__ import annotations

import pytest

from tests.exploration.explore import explore
from tests.exploration.settling.planted import PLANTED, SMALL, WORLDS
from tests.exploration.settling.world import World

SECONDS_MAX = 240.0


@pytest.mark.parametrize("name", SMALL)
def test_R434_one_silo_serves_the_grain_and_none_gives_it_up_whatever_the_store_loses(name: str) -> None:
    found = explore(World(WORLDS[name]), seconds_max=SECONDS_MAX, traced=True)
    assert found.counterexample is None, found
    assert found.complete, found
    assert found.states > 400, "a world in which nothing happens proves nothing"


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    planted = PLANTED[name]
    assert explore(World(planted.bounds, planted.rules), seconds_max=SECONDS_MAX, traced=True).counterexample
