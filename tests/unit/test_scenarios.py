"""The table of scenarios, tests/SCENARIOS.md, is complete and true."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.held_table import read_table

WANTED = {
    "migration": (1, 2, 4, 5, 6, 7, 8, 9, 12, 13),
    "directory": (14, 15, 16, 17, 18, 19, 21),
    "membership": (22, 24, 25, 27, 28, 29, 30, 31, 32, 34, 35),
    "lifecycle": (59, 60, 61, 62, 63, 64, 65),
    "persistence": (74, 75, 77, 78),
    "messaging": (79, 81, 82, 83, 84, 85, 86, 88),
    "redis": (100, 101, 102, 103, 105, 106),
    "grpc": (108, 109, 110, 111, 112, 113, 114, 115),
}
"""The scenarios that the table answers for, by kind."""
EXCUSES = ("later: ", "open: ")
"""What the note of a line without a test says: which feature will bring the test, or what is wrong today."""
TABLE = "SCENARIOS.md"


def test_each_scenario_of_these_kinds_is_in_the_table_once_and_nothing_else_is() -> None:
    wanted = Counter((f"S{number:03}", kind) for kind, numbers in WANTED.items() for number in numbers)
    assert Counter((held.number, held.what[0]) for held in read_table(TABLE)) == wanted


def test_each_scenario_is_held_by_tests_that_exist_or_says_what_is_missing() -> None:
    assert [problem for held in read_table(TABLE) for problem in held.problems(EXCUSES)] == []


@pytest.mark.parametrize("place", ["unit/nowhere.py", "unit/test_scenarios.py", "unit/test_scenarios.py::test_absent"])
def test_a_place_that_does_not_hold_the_number_is_found(place: str) -> None:
    (held, *_) = read_table(TABLE)
    assert type(held)("S999", held.what, (place,), "").problems(EXCUSES) != []
