"""The table of requirements, tests/REQUIREMENTS.md, is complete and true."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
WANTED = (
    *range(205, 211),
    *(301, *range(305, 326)),
    *(*range(404, 412), *range(414, 429), *range(448, 461)),
    *(352, 429, 439),
    *(465, 470, 471, 472, 474, 478, 479),
)
"""The numbers that this step of the project is to hold."""
ROW = re.compile(r"^\| R-(\d+) \| (?P<what>[^|]+) \| (?P<held_by>[^|]*) \| (?P<note>[^|]*) \|$", re.MULTILINE)
TEST_NAME = re.compile(r"def (test_\w+)")


def rows() -> dict[int, re.Match[str]]:
    table = (TESTS / "REQUIREMENTS.md").read_text(encoding="utf-8")
    return {int(row[1]): row for row in ROW.finditer(table)}


def named_tests(file: str) -> list[str]:
    return TEST_NAME.findall((TESTS / file).read_text(encoding="utf-8"))


def test_no_requirement_of_this_step_is_missing_from_the_table() -> None:
    assert [number for number in WANTED if number not in rows()] == []


def test_each_requirement_is_held_by_tests_that_exist_or_says_when_it_will_be() -> None:
    missing: list[str] = []
    for number, row in rows().items():
        places = re.findall(r"`([^`]+)`", row["held_by"])
        if not places and "later" not in row["note"]:
            missing.append(f"R-{number}: no test, and no word on when there will be one")
        for place in places:
            file, _, name = place.partition("::")
            if not (TESTS / file).exists():
                missing.append(f"R-{number}: there is no {file}")
            elif not (name in named_tests(file) if name else any(f"R{number}" in test for test in named_tests(file))):
                missing.append(f"R-{number}: {file} has no test of {name or 'that number'}")
    assert missing == []
