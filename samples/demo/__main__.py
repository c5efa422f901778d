"""`python -m samples.demo`: three silos under load are moved about, restarted one by one, and one of them is killed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys

from samples.demo.verdict import kill_figures, verdict_rows
from samples.local_cluster import run_to_end
from samples.rolling.display import Display
from samples.rolling.load import Crash, Tally
from samples.rolling.movements import RESTART_S, START_S, Movements, cluster_under_load
from samples.rolling.report import figures, is_good, tell
from samples.rolling.steps import Steps

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
    found = {**figures(steps, movements), "longest_pause_ms": planned_ms, "kill": kill_figures(crash, steps)}
    found["ok"] = good = is_good(found) and crash.over.is_set()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0 if good else 1
    tell(display.console, found, verdict_rows(found))
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
    return run_to_end(run(arguments))


if __name__ == "__main__":
    sys.exit(main())
