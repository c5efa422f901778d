"""Seeds of the simulated cluster keep every promise and repeat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from silo.testing.logs import quiet
from silo.testing.witness import Ended
from tests.simulation.profiles import LONG, LONG_EVERY, PROFILES, SHORT, Profile, profile_of, size_of
from tests.simulation.scenario import Result, run_seed


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def told(result: Result) -> str:
    """All that is wrong, for the assertion's message."""
    return "\n".join([f"seed {result.seed}, {result.profile}", result.failure, *map(str, result.violations)])


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_cluster_keeps_its_promises_whatever_befalls_it(profile: Profile) -> None:
    for seed, size in ((0, SHORT), (1, SHORT), (2, SHORT), (0, LONG)):
        result = run_seed(seed, profile, size)
        assert not result.failure, told(result)
        assert not result.violations, told(result)


def test_a_direct_lane_that_breaks_or_stands_still_costs_no_call() -> None:
    profile = next(each for each in PROFILES if each.name == "lanes")
    results = [run_seed(seed, profile, SHORT) for seed in range(8)]
    assert sum(result.lanes_broken for result in results) > len(results)
    for result in results:
        assert not result.violations, told(result)
        assert set(result.outcomes) <= {Ended.VALUE, Ended.CANCELLED}, told(result)


def test_the_same_seed_gives_the_same_trace() -> None:
    for profile, size in ((PROFILES[0], SHORT), (PROFILES[-1], LONG)):
        first, second = run_seed(7, profile, size), run_seed(7, profile, size)
        assert (first.trace, first.steps, first.outcomes) == (second.trace, second.steps, second.outcomes)
        assert first.trace != run_seed(8, profile, size).trace


def test_each_kind_of_weather_has_its_share_of_long_worlds() -> None:
    seeds = range(len(PROFILES) * LONG_EVERY)
    assert {profile_of(seed).name for seed in seeds if size_of(seed) is LONG} == {each.name for each in PROFILES}
    assert sum(size_of(seed) is LONG for seed in seeds) == len(PROFILES)
