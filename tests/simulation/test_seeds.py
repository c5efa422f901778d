"""Seeds of the simulated cluster keep every promise and repeat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from silo.testing.logs import quiet
from tests.simulation.profiles import PROFILES, Profile
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
    for seed in range(2):
        result = run_seed(seed, profile)
        assert not result.failure, told(result)
        assert not result.violations, told(result)


def test_the_same_seed_gives_the_same_trace() -> None:
    for profile in (PROFILES[0], PROFILES[-1]):
        first, second = run_seed(7, profile), run_seed(7, profile)
        assert (first.trace, first.steps, first.outcomes) == (second.trace, second.steps, second.outcomes)
        assert first.trace != run_seed(8, profile).trace
