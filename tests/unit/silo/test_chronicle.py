"""What a silo remembers of grains that were in trouble: the last transitions, boundedly."""

from __future__ import annotations

from silo.chronicle import GRAINS_MAX, TRANSITIONS_MAX, WHY_CHARS_MAX, Chronicle
from silo.directory.addresses import GrainId
from silo.grain_records import Fate

ROOM = GrainId("room", "lobby")


def test_R217_the_last_twenty_transitions_of_a_grain_are_kept() -> None:
    chronicle = Chronicle()
    for number in range(3 * TRANSITIONS_MAX):
        chronicle.note(ROOM, Fate.NOT_PLACED if number % 2 else Fate.FOUND, f"try {number}", float(number))
    kept = chronicle.of(ROOM, 100.0)
    assert len(kept) == TRANSITIONS_MAX == 20
    assert [each.why for each in kept] == [f"try {number}" for number in range(40, 60)]
    assert kept[-1].ago_s == 41.0


def test_what_repeats_itself_is_one_transition_by_its_last_reason() -> None:
    chronicle = Chronicle()
    chronicle.note(ROOM, Fate.LOST, "its silo is dead", 1.0)
    for number in range(1000):
        chronicle.note(ROOM, Fate.NOT_PLACED, f"try {number}", 2.0 + number)
    lost, tried = chronicle.of(ROOM, 1002.0)
    assert (lost.state, lost.times) == ("lost", 1)
    assert (tried.state, tried.why, tried.times, tried.ago_s) == ("not placed", "try 999", 1000, 1.0)


def test_grains_beyond_the_bound_are_forgotten_the_one_that_changed_longest_ago_first() -> None:
    chronicle = Chronicle()
    first, second = GrainId("room", "0"), GrainId("room", "1")
    for number in range(GRAINS_MAX):
        chronicle.note(GrainId("room", str(number)), Fate.NOT_PLACED, "no silo", 1.0)
    chronicle.go_on(first, Fate.FOUND, "on a", 2.0)
    chronicle.note(ROOM, Fate.NOT_PLACED, "no silo", 3.0)
    assert len(chronicle) == GRAINS_MAX
    assert first in chronicle
    assert second not in chronicle


def test_of_a_grain_that_was_never_in_trouble_nothing_is_kept() -> None:
    chronicle = Chronicle()
    chronicle.go_on(ROOM, Fate.ACTIVE, "under epoch 1", 1.0)
    assert len(chronicle) == 0
    assert chronicle.of(ROOM, 2.0) == ()


def test_a_reason_is_kept_up_to_its_bound() -> None:
    chronicle = Chronicle()
    chronicle.note(ROOM, Fate.NOT_PLACED, "x" * 10_000, 1.0)
    assert chronicle.of(ROOM, 1.0)[0].why == "x" * WHY_CHARS_MAX
