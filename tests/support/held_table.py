"""Tables of what tests hold: numbers, the tests that hold them, and notes. For the tests of those tables.

A line is `| number | … | held by | note |`. A place in `held by` is a file, one of whose tests has the number in its
name, or a test in full, `file::test`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TEST_NAME = re.compile(r"def (test_\w+)")
LINE = re.compile(r"^\| (?P<number>[RS]-?\d+) \|(?P<cells>.*)\|$", re.MULTILINE)
PLACE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Held:
    """One line of a table."""

    number: str
    what: tuple[str, ...]
    """The cells between the number and the places."""
    places: tuple[str, ...]
    note: str

    @property
    def mark(self) -> str:
        """The number as it stands in the names of tests."""
        return self.number.replace("-", "")

    def problems(self, excuses: Sequence[str]) -> list[str]:
        """What is wrong with the line; an excuse in its note is what may stand in place of a test."""
        if not self.places and not any(excuse in self.note for excuse in excuses):
            return [f"{self.number}: no test, and no word on why"]
        return [f"{self.number}: {wrong}" for place in self.places if (wrong := self._wrong_place(place))]

    def _wrong_place(self, place: str) -> str:
        file, _, name = place.partition("::")
        if not (TESTS / file).is_file():
            return f"there is no {file}"
        tests = named_tests(file)
        if name:
            return "" if name in tests else f"{file} has no test {name}"
        return "" if any(self._is_named_in(test) for test in tests) else f"{file} has no test of that number"

    def _is_named_in(self, test: str) -> bool:
        return re.search(rf"{self.mark}(?!\d)", test) is not None


def read_table(file: str) -> list[Held]:
    """The lines of a table below tests/, in their order."""
    text = (TESTS / file).read_text(encoding="utf-8")
    return [_held(line["number"], line["cells"]) for line in LINE.finditer(text)]


def _held(number: str, cells: str) -> Held:
    *what, held_by, note = (cell.strip() for cell in cells.split("|"))
    return Held(number, tuple(what), tuple(PLACE.findall(held_by)), note)


def named_tests(file: str) -> list[str]:
    """The names of the tests in a file below tests/."""
    return TEST_NAME.findall((TESTS / file).read_text(encoding="utf-8"))
