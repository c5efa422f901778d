"""Explore what a lost directory may do to one grain: `python -m tests.exploration.settling [--minutes M]`."""

from __future__ import annotations

import argparse
import sys

from tests.exploration.explore import explore
from tests.exploration.settling.planted import PLANTED, WORLDS
from tests.exploration.settling.world import World

PLANTED_S_MAX = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Look for every planted fault and explore every world; 0 if all were found and the promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.settling", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="processor time for the worlds, at most (default: %(default)s)"
    )
    left_s = parser.parse_args(arguments).minutes * 60
    broken = 0
    for name, planted in PLANTED.items():
        found = explore(World(planted.bounds, planted.rules), seconds_max=PLANTED_S_MAX, traced=True)
        broken += found.counterexample is None
        print(f"planted: {name}: {found}", flush=True)
    for done, (name, bounds) in enumerate(WORLDS.items()):
        found = explore(World(bounds), seconds_max=left_s / (len(WORLDS) - done), traced=True)
        left_s -= found.cpu_s  # what one world leaves is the others'
        broken += found.counterexample is not None
        print(f"{name}: {found}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
