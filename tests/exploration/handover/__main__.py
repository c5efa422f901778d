"""Explore the handover protocol: `python -m tests.exploration.handover [--short] [--planted] [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
import time

from tests.exploration.handover.explorer import explore
from tests.exploration.handover.planted import PLANTED
from tests.exploration.handover.play import Play
from tests.exploration.handover.settings import LONG, SHORT
from tests.exploration.handover.world import Bounds, Violation


def main(arguments: list[str] | None = None) -> int:
    """Explore what the command line asks for; 0 if every promise holds and every planted fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.handover", description=__doc__)
    parser.add_argument("--short", action="store_true", help="the short form alone, as the tests run it")
    parser.add_argument("--planted", action="store_true", help="only the planted faults, each with its story")
    parser.add_argument("--json", action="store_true", help="print one object for each line")
    options = parser.parse_args(arguments)
    failures = 0
    if not options.planted:
        configurations = SHORT if options.short else {**SHORT, **LONG}
        failures = sum(not _holds(name, bounds, as_json=options.json) for name, bounds in configurations.items())
    found = sum(_finds(index, as_json=options.json, tells=options.planted) for index in range(len(PLANTED)))
    print(f"planted faults found: {found} of {len(PLANTED)}; configurations that failed: {failures}")
    return 0 if found == len(PLANTED) and not failures else 1


def _holds(name: str, bounds: Bounds, *, as_json: bool) -> bool:
    started = time.monotonic()
    try:
        seen = explore(Play(), bounds)
    except Violation as violation:
        print(f"{name}: {violation}", flush=True)
        return False
    took_s = time.monotonic() - started
    if as_json:
        figures = {"states": seen.states, "transitions": seen.transitions, "ends": seen.ends, "complete": seen.complete}
        print(json.dumps({"configuration": name, **figures, "seconds": round(took_s, 1)}), flush=True)
    else:
        complete = "complete" if seen.complete else "NOT complete"
        counts = f"{seen.states:>9,} states {seen.transitions:>10,} transitions {seen.ends:>5,} ends"
        print(f"{name:<58} {counts}  {complete}, {took_s:.1f} s", flush=True)
    return seen.complete


def _finds(index: int, *, as_json: bool, tells: bool) -> bool:
    planted = PLANTED[index]
    try:
        explore(planted.play, planted.bounds)
    except Violation as violation:
        what, _, story = str(violation).partition(", after:\n")
        if as_json:
            print(json.dumps({"planted": planted.what, "found": what, "steps": story.count("\n")}), flush=True)
        else:
            print(f"found, in {story.count(chr(10))} steps: {planted.what}: {what}", flush=True)
            if tells:
                print(story, flush=True)
        return True
    print(f"NOT FOUND: {planted.what}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
