"""No decision of the runtime rests on the wall clock, which differs between machines and is set while silos run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("directory", "placement", "migration", "silo")
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
ALLOWED = {
    ("silo/surroundings.py", "time.time_ns"),
    ("silo/telemetry/brief_spans.py", "time.time_ns"),
    ("silo/telemetry/telemetry.py", "time.time_ns"),
}
"""The number of an incarnation, which is compared for equality only; and when spans began and ended, for people."""


def files() -> Iterator[Path]:
    for package in PRODUCT:
        yield from sorted((ROOT / package).rglob("*.py"))


def readings(source: str) -> set[str]:
    """The wall clocks that a module reads, by the names under which it may."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            base = node.value
            owner = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            found.add(f"{owner}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found.update(f"time.{alias.name}" for alias in node.names)
    return found & WALL_CLOCKS


def test_S030_S082_nothing_is_decided_by_the_wall_clock() -> None:
    read = {(str(file.relative_to(ROOT)), clock) for file in files() for clock in readings(file.read_text("utf-8"))}
    assert read == ALLOWED


def test_a_reading_is_found_under_each_of_its_names() -> None:
    assert readings("import time\nt = time.time()") == {"time.time"}
    assert readings("from time import time_ns") == {"time.time_ns"}
    assert readings("import datetime\nd = datetime.datetime.now()") == {"datetime.now"}
    assert readings("import time\nt = time.monotonic()") == set()
