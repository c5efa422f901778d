"""The verdict of the demonstration: what became of the calls, and how soon the kill was over."""

from __future__ import annotations

from typing import Any

from samples.rolling.load import Crash
from samples.rolling.steps import Steps


def kill_figures(crash: Crash, steps: Steps) -> dict[str, Any]:
    """What the kill, the last of the steps, has cost."""
    waits = sorted(crash.first_answer_s.values())
    return {
        "silo": crash.silo,
        "grains": len(crash.hosted),
        "grains_back": len(waits),
        "outcome_unknown": steps.tally.unknown,
        "not_executed": steps.tally.refused,
        "first_success_s": round(waits[0], 3) if waits else None,
        "last_success_s": round(waits[-1], 3) if waits else None,
        "longest_pause_ms": steps.done[-1].slowest_ms,
    }


def verdict_rows(found: dict[str, Any]) -> dict[str, str]:
    """The figures as lines: a name and a value each."""
    kill, pause = found["kill"], found["move_pause_ms"]
    rows = {
        "calls made": f"{found['calls_made']:,}",
        "calls answered": f"{found['calls_answered']:,}",
        "lost by a migration or a planned restart": f"{found['lost']}",
        "run twice": f"{found['repeated']}",
        "migrations": f"{found['moves']:,}",
    }
    if pause is not None:
        rows["a migration held its grain for"] = f"{pause['median']:.0f} ms (median), {pause['longest']:.0f} ms at most"
    rows["longest pause a caller saw before the kill"] = f"{found['longest_pause_ms']:.0f} ms"
    rows[f"killed: {kill['silo']}, with"] = f"{kill['grains']} of {found['grains']} grains"
    rows["  calls that failed as outcome unknown"] = f"{kill['outcome_unknown']}"
    rows["  calls that failed as not executed"] = f"{kill['not_executed']}"
    if kill["first_success_s"] is not None:
        rows["  first success after the kill"] = f"{kill['first_success_s']:.2f} s"
        rows["  all of its grains answered again after"] = f"{kill['last_success_s']:.2f} s"
    if kill["grains_back"] < kill["grains"]:
        rows["  grains that have not answered again"] = f"{kill['grains'] - kill['grains_back']}"
    return rows
