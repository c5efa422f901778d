"""What was found, as figures for machines and as lines for people."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

from rich.console import Console

from samples.rolling.movements import Movements
from samples.rolling.steps import Steps

NAME_WIDTH = 46


def figures(steps: Steps, movements: Movements) -> dict[str, Any]:
    """The account of a run; `v` is the version of its form."""
    tally = steps.tally
    spread = tally.spread
    return {
        "v": 1,
        "silos": len(movements.cluster.names),
        "grains": len(movements.load.meters),
        "calls_made": tally.made,
        "calls_answered": tally.answered,
        "lost": tally.lost,
        "repeated": tally.repeated,
        "moves": tally.moves,
        "moves_not_made": dict(movements.not_made),
        "move_pause_ms": _pauses(movements.pauses_s),
        "longest_pause_ms": steps.slowest_ms,
        "grains_by_silo": spread,
        "spread": round(max(spread.values()) / (sum(spread.values()) / len(spread)), 3) if spread else None,
        "restarts": [asdict(restart) for restart in movements.restarts],
        "steps": [asdict(step) for step in steps.done],
        "problems": tally.problems,
    }


def is_good(found: dict[str, Any]) -> bool:
    """Whether the run kept the promise: nothing lost, nothing run twice, every stop orderly."""
    stopped = all(restart["exit_code"] == 0 for restart in found["restarts"])
    return found["lost"] == 0 and found["repeated"] == 0 and found["calls_answered"] > 0 and stopped


def tell(console: Console, found: dict[str, Any], rows: dict[str, str]) -> None:
    """Print the rows, then what went wrong if anything did, then what did not matter."""
    console.print()
    for name, value in rows.items():
        console.print(f"{name:<{NAME_WIDTH}}{value}", markup=False)
    for restart in found["restarts"]:
        if restart["exit_code"] != 0:
            console.print(f"{restart['silo']} was told to stop and ended with {restart['exit_code']}", style="red")
    for problem in found["problems"]:
        console.print(problem, style="red", markup=False)
    for why, count in found["moves_not_made"].items():
        console.print(f"{count} moves not made, their grains stayed where they were: {why}", style="dim", markup=False)
    console.print()


def _pauses(pauses_s: list[float]) -> dict[str, float] | None:
    """How long moved grains ran no calls."""
    if not pauses_s:
        return None
    return {"median": round(statistics.median(pauses_s) * 1000, 2), "longest": round(max(pauses_s) * 1000, 2)}
