"""Run seeds: `python -m tests.simulation --seeds 200 [--from N] [--profile NAME] [--json] [--jobs N] [--repeat]`."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections import Counter as Tally
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from silo.testing.logs import quiet
from tests.simulation.profiles import PROFILES
from tests.simulation.runs import begin, run_one
from tests.simulation.scenario import Result

VIOLATIONS_SHOWN = 10
CHUNK_SEEDS = 4
"""How many seeds a process takes at a time."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 0 if every promise was kept."""
    options = _parse(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of text must repeat as well
        command = [sys.executable, "-m", "tests.simulation", *(sys.argv[1:] if arguments is None else arguments)]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    started = time.monotonic()
    results: list[Result] = []
    for result in _run(options):
        results.append(result)
        if result.failure or result.violations:
            _tell(result)
        elif options.verbose:
            print(_line(result), flush=True)
    failed = [result for result in results if result.failure or result.violations]
    summary = _summary(results, time.monotonic() - started)
    if options.json:
        print(json.dumps({**summary, "failed_seeds": [result.seed for result in failed]}))
    else:
        print(", ".join(f"{name} {value}" for name, value in summary.items()))
    return 1 if failed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default: %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--profile", choices=[profile.name for profile in PROFILES], help="this profile for every seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to run them in")
    parser.add_argument("--repeat", action="store_true", help="run each seed twice and compare the traces")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--verbose", action="store_true", help="a line for each seed; with one job, the runtime's log too"
    )
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> Iterator[Result]:
    seeds = range(options.first, options.first + options.seeds)
    one = partial(run_one, profile=options.profile, repeat=options.repeat)
    if options.jobs == 1:
        with contextlib.nullcontext() if options.verbose else quiet():
            yield from map(one, seeds)
        return
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), initializer=begin) as pool:
        yield from pool.map(one, seeds, chunksize=CHUNK_SEEDS)


def _line(result: Result) -> str:
    outcomes = " ".join(f"{name}={count}" for name, count in (*result.outcomes.items(), *result.errors.items()))
    size = f"{result.virtual_s:.0f} s, {result.steps} steps, {result.moves} moves"
    return f"seed {result.seed} ({result.profile}, {result.size}): {size}, {outcomes}"


def _tell(result: Result) -> None:
    print(f"FAILED {_line(result)}", file=sys.stderr)
    if result.failure:
        print(f"  {result.failure}", file=sys.stderr)
    for violation in result.violations[:VIOLATIONS_SHOWN]:
        print(f"  {violation}", file=sys.stderr)
    if len(result.violations) > VIOLATIONS_SHOWN:
        print(f"  and {len(result.violations) - VIOLATIONS_SHOWN} more", file=sys.stderr)
    repeat = f"python -m tests.simulation --from {result.seed} --seeds 1 --profile {result.profile} --jobs 1 --verbose"
    print(f"  to repeat it: {repeat}", file=sys.stderr, flush=True)


def _summary(results: list[Result], wall_s: float) -> dict[str, object]:
    outcomes: Tally[str] = Tally()
    errors: Tally[str] = Tally(TooManyHops=0)  # said also where there is none: no call should end so
    for result in results:
        outcomes.update(result.outcomes)
        errors.update(result.errors)
    return {
        "seeds": len(results),
        "failed": sum(1 for result in results if result.failure or result.violations),
        "virtual_s": round(sum(result.virtual_s for result in results)),
        "steps": sum(result.steps for result in results),
        "calls": sum(result.calls for result in results),
        **dict(sorted(outcomes.items())),
        **dict(sorted(errors.items())),
        "moves": sum(result.moves for result in results),
        "lanes_broken": sum(result.lanes_broken for result in results),
        "wall_s": round(wall_s, 1),
        "seeds_per_s": round(len(results) / wall_s, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
