"""References are typed as the grain: right code passes mypy and pyright in strict mode, wrong lines are found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ".mypy_cache/as_users"
"""Apart from what `make mypy` keeps, whose options are others: each would find nothing there that it can use."""
Found = Mapping[tuple[str, int], set[str]]
"""The rules that a type checker names, by file (`pass/grains.py`) and line."""


def run(*command: str) -> str:
    """The output of a type checker, whose exit code says only whether it found anything."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode in (0, 1), result.stderr + result.stdout
    return result.stdout


def place(path: str, line: int) -> tuple[str, int]:
    return Path(path).resolve().relative_to(HERE).as_posix(), line


def found_by_mypy() -> Found:
    files = [str(path.relative_to(ROOT)) for path in sorted(HERE.glob("*/*.py"))]
    options = ["--strict", "--explicit-package-bases", "--config-file=", f"--cache-dir={CACHE}", "-O", "json"]
    output = run(sys.executable, "-m", "mypy", *options, *files)
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        report = cast("dict[str, Any]", json.loads(line))
        path = ROOT / report["file"]
        if report["severity"] == "error" and path.is_relative_to(HERE):  # `make mypy` judges the rest
            found[place(str(path), report["line"])].add(report["code"])
    return found


def found_by_pyright() -> Found:
    output = run(sys.executable, "-m", "basedpyright", "-p", str(HERE), "--pythonpath", sys.executable, "--outputjson")
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for report in cast("list[dict[str, Any]]", json.loads(output)["generalDiagnostics"]):
        if report["severity"] == "error":
            found[place(report["file"], report["range"]["start"]["line"] + 1)].add(report["rule"])
    return found


def expected(tool: str) -> dict[tuple[str, int], str]:
    """The mistakes that are marked; whatever else a checker says of such a line follows from the mistake."""
    marks: dict[tuple[str, int], str] = {}
    for path in sorted((HERE / "fail").glob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if rule := re.search(rf"# E:.*\b{tool}=([\w-]+)", line):
                marks[place(str(path), number)] = rule[1]
    return marks


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "check"), [("mypy", found_by_mypy), ("pyright", found_by_pyright)])
def test_right_code_passes_and_every_mistake_is_found(tool: str, check: Any) -> None:
    found, wanted = cast("Found", check()), expected(tool)
    assert wanted, "no line is marked as a mistake"
    unforeseen = {at: rules for at, rules in found.items() if at not in wanted}
    missed = {at: rule for at, rule in wanted.items() if rule not in found.get(at, ())}
    assert (unforeseen, missed) == ({}, {})
