"""`python -m samples.rolling`: stop and start each silo of a cluster while a client calls its grains."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from samples.local_cluster import run_to_end
from samples.rolling.display import Display
from samples.rolling.load import Tally
from samples.rolling.movements import RESTART_S, START_S, cluster_under_load
from samples.rolling.report import figures, is_good, tell
from samples.rolling.steps import Steps


async def run(arguments: argparse.Namespace) -> int:
    """Start the cluster, restart each silo of it, and report."""
    busy_s = START_S + arguments.silos * RESTART_S
    rest_s = max(0.5, (arguments.seconds - busy_s) / (arguments.silos + 1))
    steps = Steps(Tally(), expected_s=busy_s + rest_s * (arguments.silos + 1))
    with Display(steps, quiet=arguments.json) as display:
        async with cluster_under_load(
            "samples.rolling",
            steps,
            silos=arguments.silos,
            grains=arguments.grains,
            calls_per_s=arguments.calls_per_s,
            seed=arguments.seed,
        ) as movements:
            with steps.step("calls, and nothing else", expected_s=rest_s):
                await asyncio.sleep(rest_s)
            for name in movements.cluster.names:
                with steps.step(f"{name} stops and starts", expected_s=RESTART_S + rest_s):
                    await movements.restart(name)
                    await asyncio.sleep(rest_s)
    found = figures(steps, movements)
    good = is_good(found)
    if arguments.json:
        print(json.dumps({**found, "ok": good}, indent=2))
        return 0 if good else 1
    rows = {
        "calls made": f"{found['calls_made']:,}",
        "calls answered": f"{found['calls_answered']:,}",
        "lost": f"{found['lost']}",
        "run twice": f"{found['repeated']}",
        "moves of grains": f"{found['moves']:,}",
        "longest pause a caller saw": f"{found['longest_pause_ms']:.0f} ms",
        "grains now": " · ".join(f"{silo} {count}" for silo, count in found["grains_by_silo"].items()),
    }
    tell(display.console, found, rows)
    ending = "every silo was replaced, and nobody noticed" if good else "the promise was broken"
    display.console.print(ending, style="green" if good else "bold red")
    return 0 if good else 1


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m samples.rolling", description=__doc__)
    parser.add_argument("--silos", type=int, default=3, help="how many silo processes; at least 2")
    parser.add_argument("--grains", type=int, default=200, help="how many grains are called, one call at a time each")
    parser.add_argument("--seconds", type=float, default=14.0, help="about how long the run takes")
    parser.add_argument("--calls-per-s", type=float, default=1000.0, help="calls per second of all callers together")
    parser.add_argument("--seed", type=int, default=1, help="which grains move, and when each caller begins")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    if arguments.silos < 2:
        parser.error("a silo that stops needs another one to move its grains to: --silos 2 or more")
    if arguments.grains < 1 or arguments.calls_per_s <= 0 or arguments.seconds <= 0:
        parser.error("--grains, --calls-per-s and --seconds must be above 0")
    return run_to_end(run(arguments))


if __name__ == "__main__":
    sys.exit(main())
