"""What a newcomer sees of a run fits on a terminal of 80 columns."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from samples.rolling.display import WIDTH, Display
from samples.rolling.load import Tally
from samples.rolling.steps import Steps

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def played(*, terminal: bool, quiet: bool = False) -> tuple[str, Steps]:
    """What is printed of two steps with impressive figures."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=WIDTH, soft_wrap=True, highlight=False, color_system=None, _environ={}
    )
    tally = Tally()
    steps = Steps(tally, expected_s=10)
    with Display(steps, quiet=quiet, console=console):
        with steps.step("3 silos start", expected_s=3):
            pass
        with steps.step("silo-3 stops and starts", expected_s=7):
            tally.answered = tally.made = 9_876_543
            tally.moves, tally.slowest_s, tally.lost, tally.repeated = 98_765, 12.345, 12, 3
            tally.where = ["silo-1"] * 60_000 + ["silo-2"] * 40_000
    return out.getvalue(), steps


@pytest.mark.parametrize("terminal", [True, False])
def test_the_table_fits_into_80_columns(terminal: bool) -> None:
    shown, steps = played(terminal=terminal)
    lines = CONTROL.sub("", shown).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "silo-3 stops and starts" in shown
    assert f"{9_876_543:,}" in shown
    assert "12345 ms" in shown
    assert steps.progress == 1
    assert [(step.lost, step.repeated) for step in steps.done] == [(0, 0), (12, 3)]


def test_without_a_terminal_json_stands_alone() -> None:
    shown, _ = played(terminal=False, quiet=True)
    assert shown == ""


def test_the_slowest_call_belongs_to_its_step() -> None:
    tally = Tally()
    steps = Steps(tally, expected_s=2)
    with steps.step("slow", expected_s=1):
        tally.slowest_s = 0.5
    with steps.step("fast", expected_s=1):
        tally.slowest_s = 0.1
    assert [step.slowest_ms for step in steps.done] == [500, 100]
    assert steps.slowest_ms == 500
