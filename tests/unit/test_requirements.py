"""The table of requirements, tests/REQUIREMENTS.md, is complete and true."""

from __future__ import annotations

from tests.support.held_table import read_table

WANTED = (
    *range(201, 227),
    *(301, 303, 304, *range(305, 326), 331, 332, *range(334, 337), 369, 372, 374),
    *(352, *range(402, 431), 433, 435, *range(439, 446), *range(448, 461)),
    *(465, 466, 468, 470, 471, 472, 473, 474, 478, 479),
    *range(601, 611),
)
"""The numbers that this step of the project is to hold."""
TABLE = "REQUIREMENTS.md"


def test_no_requirement_of_this_step_is_missing_from_the_table() -> None:
    there = {held.number for held in read_table(TABLE)}
    assert [number for number in WANTED if f"R-{number}" not in there] == []


def test_each_requirement_is_held_by_tests_that_exist_or_says_when_it_will_be() -> None:
    assert [problem for held in read_table(TABLE) for problem in held.problems(["later"])] == []
