"""What the nemesis is going to do follows from the seed, and leaves nothing out."""

from __future__ import annotations

import random
from collections import Counter as Tally

import pytest

from tests.chaos.bench import Plan
from tests.chaos.schedule import OF_WIPES, PLANNED, REDIS, Act, Beat, Cast, schedule

CAST = Cast(("silo-1", "silo-2", "silo-3"), ("caller-1", "caller-2"), lease_s=2.0)
LONG_S = 600.0


def made(seed: int, seconds: float = LONG_S, cast: Cast = CAST) -> list[Beat]:
    return schedule(seconds, cast, random.Random(seed))


def test_the_same_seed_makes_the_same_schedule_and_another_one_another() -> None:
    assert made(1) == made(1)
    assert made(1) != made(2)


@pytest.mark.parametrize("seed", range(5))
def test_ten_minutes_have_every_act_at_least_50_faults_and_some_freezes_longer_than_three_leases(seed: int) -> None:
    beats = made(seed)
    acts = Tally(beat.act for beat in beats)
    assert set(acts) == set(Act) - set(OF_WIPES)
    assert sum(count for act, count in acts.items() if act not in PLANNED) >= 50
    assert max(beat.lasts_s for beat in beats if beat.act is Act.FREEZE) > 3 * CAST.lease_s
    assert all(0 <= beat.at_s <= LONG_S for beat in beats)
    assert 10 * Plan(LONG_S, seed).move_rate * 60 > 5_000


@pytest.mark.parametrize("seed", range(5))
def test_links_of_every_sort_are_troubled(seed: int) -> None:
    sorts = {
        frozenset(party.rstrip("-0123456789") for party in (beat.one, beat.other)) for beat in made(seed) if beat.other
    }
    assert sorts == {frozenset(pair) for pair in (["silo"], ["silo", "caller"], ["silo", REDIS], ["caller", REDIS])}


def test_redis_is_wiped_only_where_that_is_asked_for() -> None:
    wiping = Cast(CAST.silos, CAST.callers, CAST.lease_s, wipe=True)
    assert {beat.act for beat in made(1, cast=wiping)} == set(Act)
