"""`python -m samples.demo`: three silos under load are moved about, restarted one by one, and one of them is killed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from typing import Any

from samples.rolling.display import Display
from samples.rolling.load import Crash, Tally
from samples.rolling.movements import RESTART_S, START_S, Movements, cluster_under_load
from samples.rolling.report import figures, is_good, tell
from samples.rolling.steps import Steps
from silo.application import run_on

SILOS = 3
KILL_S = 3.0
"""About how long it takes until the grains of a silo that was killed answer again, for the progress bar."""
RECOVERY_TIMEOUT_S = 60.0
AFTERMATH_S = 1.0
"""For how long the calls go on after the recovery."""
CALM_SHARE, MOVING_SHARE = 0.25, 0.75
"""How the time that is left beside starts, restarts and the kill is divided."""


async def run(arguments: argparse.Namespace) -> int:
    """Do all of it, and report."""
    busy_s = START_S + SILOS * RESTART_S + KILL_S
    free_s = max(2.0, arguments.seconds - busy_s)
    steps = Steps(Tally(), expected_s=busy_s + free_s)
    with Display(steps, quiet=arguments.json) as display:
        async with cluster_under_load(
            "samples.demo",
            steps,
            silos=SILOS,
            grains=arguments.grains,
            calls_per_s=arguments.calls_per_s,
            seed=arguments.seed,
        ) as movements:
            with steps.step("calls, and nothing else", expected_s=free_s * CALM_SHARE):
                await asyncio.sleep(free_s * CALM_SHARE)
            with steps.step("grains move about", expected_s=free_s * MOVING_SHARE):
                await movements.move_at_random(free_s * MOVING_SHARE)
            for name in movements.cluster.names:
                with steps.step(f"{name} stops and starts", expected_s=RESTART_S):
                    await movements.restart(name)
            planned_ms = steps.slowest_ms
            crash = await _kill(movements, steps)
    found = {**figures(steps, movements), "longest_pause_ms": planned_ms, "kill": _kill_figures(crash, steps)}
    found["ok"] = good = is_good(found) and crash.over.is_set()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0 if good else 1
    tell(display.console, found, _rows(found))
    ending = "nothing was lost, and nothing ran twice" if good else "the promise was broken"
    display.console.print(ending, style="bold green" if good else "bold red")
    return 0 if good else 1


async def _kill(movements: Movements, steps: Steps) -> Crash:
    """SIGKILL the silo that hosts most grains, and wait until all of them answer again from elsewhere."""
    load = movements.load
    await load.round()  # so that each caller knows where its grain is
    spread = load.tally.spread
    victim = max(spread, key=lambda silo: spread[silo])
    with steps.step(f"kill -9 of {victim}", expected_s=KILL_S):
        crash = load.crashes(victim)
        await movements.cluster.silos[victim].kill()
        with contextlib.suppress(TimeoutError):  # the verdict says so
            async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                await crash.over.wait()
        await asyncio.sleep(AFTERMATH_S)
        await load.round()
    return crash


def _kill_figures(crash: Crash, steps: Steps) -> dict[str, Any]:
    """What the kill cost, and how soon it was over."""
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


def _rows(found: dict[str, Any]) -> dict[str, str]:
    """The verdict, line by line."""
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


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m samples.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=28.0, help="about how long the run takes")
    parser.add_argument("--grains", type=int, default=300, help="how many grains are called, one call at a time each")
    parser.add_argument("--calls-per-s", type=float, default=2000.0, help="calls per second of all callers together")
    parser.add_argument("--seed", type=int, default=1, help="which grains move where, and when each caller begins")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    if arguments.grains < SILOS or arguments.calls_per_s <= 0 or arguments.seconds <= 0:
        parser.error(f"--grains must be at least {SILOS}; --calls-per-s and --seconds must be above 0")
    return run_on(None, run(arguments))


if __name__ == "__main__":
    sys.exit(main())
