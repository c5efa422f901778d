"""Explore what a lost directory may do to one grain: `python -m tests.exploration.settling [--minutes M]`."""

from __future__ import annotations

import argparse
import sys

from tests.exploration.explore import explore
from tests.exploration.settling.planted import PLANTED, WORLDS
from tests.exploration.settling.world import World


def main(arguments: list[str] | None = None) -> int:
    """Explore every world and look for every planted fault; 0 if the promise was kept and all were found."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.settling", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of it, at most (default: %(default)s)")
    seconds = parser.parse_args(arguments).minutes * 60 / (len(WORLDS) + len(PLANTED))
    broken = 0
    for name, bounds in WORLDS.items():
        found = explore(World(bounds), seconds_max=seconds, traced=True)
        broken += found.counterexample is not None
        print(f"{name}: {found}", flush=True)
    for name, planted in PLANTED.items():
        found = explore(World(planted.bounds, planted.rules), seconds_max=seconds, traced=True)
        broken += found.counterexample is None
        print(f"planted: {name}: {found}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
