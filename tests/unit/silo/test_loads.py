"""What a silo makes of the others' words on how much they have to do: who is full, and who has enough in flight."""

from __future__ import annotations

import random

from silo.directory.addresses import GrainId
from silo.loads import Loads
from silo.wire.frames import Load
from tests.unit.placement.world import address, cluster, grains, row

ME, OTHER = row(0), row(1)
UNHEARD_MAX = 3


def loads(own: Load | None = None) -> tuple[Loads, list[str]]:
    """The loads of silo 0, and how often it was told that a full silo has room again."""
    told: list[str] = []
    made = Loads(
        address(0),
        random.Random(1),
        lambda: cluster(2),
        lambda: own or Load(0),
        in_flight_max_unheard=UNHEARD_MAX,
        on_room=lambda: told.append("room"),
    )
    return made, told


def choose(made: Loads, count: int, kind: str = "room") -> list[GrainId]:
    chosen = grains(count, kind)
    for grain in chosen:
        made.chosen(grain, OTHER.silo)
    return chosen


async def test_R319_a_silo_is_busy_by_what_it_says_and_what_was_sent_to_it_since() -> None:
    made, _ = loads()
    made.report(OTHER.silo, Load(100, 0.0, 250, 256))
    choose(made, 5)
    assert made.why_busy(OTHER) is None
    choose(made, 6)  # one more than these
    assert made.why_busy(OTHER) == "256 of 256 activations in flight"
    made.report(OTHER.silo, Load(100, 0.0, 200, 256))  # what was sent before is part of it
    assert made.why_busy(OTHER) is None


async def test_R319_what_has_been_activated_is_in_flight_no_more_before_the_next_report() -> None:
    made, _ = loads()
    made.report(OTHER.silo, Load(100, 0.0, 0, 2))
    first, _ = choose(made, 2)
    assert made.why_busy(OTHER) == "2 of 2 activations in flight"
    made.answered(first, OTHER.silo)
    assert made.why_busy(OTHER) is None


async def test_R319_a_silo_that_has_said_nothing_yet_gets_no_more_than_a_fresh_one_takes() -> None:
    made, _ = loads()
    choose(made, UNHEARD_MAX - 1)
    assert made.why_busy(OTHER) is None
    choose(made, UNHEARD_MAX)
    assert made.why_busy(OTHER) == "3 of 3 activations in flight"
    choose(made, 1_000, "cart")  # what is passed over needs no more counting
    assert made.why_busy(OTHER) == "3 of 3 activations in flight"
    made.forget(OTHER.silo)
    assert made.why_busy(OTHER) is None


async def test_a_silo_counts_its_own_activations_as_they_are() -> None:
    own = Load(0, 0.0, 1, 2)
    made, _ = loads(own)
    for grain in grains(5):
        made.chosen(grain, ME.silo)
    assert made.why_busy(ME) is None
    own.in_flight = 2
    assert made.why_busy(ME) == "2 of 2 activations in flight"


async def test_a_silo_of_a_version_that_names_no_cap_is_not_held_to_one() -> None:
    made, _ = loads()
    made.report(OTHER.silo, Load(100))
    choose(made, 1_000)
    assert made.why_busy(OTHER) is None
    assert made.why_full(OTHER) is None


async def test_a_silo_is_full_by_its_own_word_and_about_to_be_by_what_was_sent_to_it() -> None:
    made, _ = loads()
    made.report(OTHER.silo, Load(8, activations_max=10))
    choose(made, 2)
    assert made.why_full(OTHER) is None
    assert made.why_busy(OTHER) == "full: 10 of 10 activations, with those on their way"
    made.report(OTHER.silo, Load(10, activations_max=10))
    assert made.why_full(OTHER) == "full: 10 of 10 activations"


async def test_R204_that_a_full_silo_has_room_is_told_once_and_of_no_other_silo() -> None:
    made, told = loads()
    for activations in (3, 10, 11, 10, 9, 8, 7):
        made.report(OTHER.silo, Load(activations, activations_max=10))
    assert told == ["room"]
    made.report(OTHER.silo, Load(10, activations_max=10))
    assert told == ["room"]
    made.report(OTHER.silo, Load(10, activations_max=12))  # its bound may change, too
    assert told == ["room", "room"]
