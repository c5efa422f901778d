"""Explores who may serve: `python -m tests.exploration.membership --configs all --minutes 10`.

Prints, for each world, its states, its transitions, and whether that was all of them; ends with 1 if the promise is
broken in one, or if a planted bug goes unseen.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.exploration.explore import explore
from tests.exploration.membership.configurations import ALL, SMALL
from tests.exploration.membership.planted import PLANTED, PLANTED_LOSS
from tests.exploration.membership.world import World

PLANTED_S_MAX = 60.0


def main() -> int:
    """Explore what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", default="all", help="`all`, `small`, `planted`, or the name of one")
    parser.add_argument("--minutes", type=float, default=10.0, help="processor time for all of them together")
    arguments = parser.parse_args()
    until = time.process_time() + 60 * arguments.minutes
    wrong = 0
    if arguments.configs == "planted":
        for name, planted in {**PLANTED, **PLANTED_LOSS}.items():
            found = explore(World(planted.configuration, planted.parts), seconds_max=PLANTED_S_MAX, traced=True)
            print(f"{name}: {found}", flush=True)
            wrong += found.counterexample is None
        return int(wrong > 0)
    groups = {"all": list(ALL.values()), "small": list(SMALL)}
    if arguments.configs not in groups and arguments.configs not in ALL:
        parser.error(f"there is no configuration {arguments.configs!r}; there are: {', '.join(ALL)}")
    complete = 0
    chosen = groups.get(arguments.configs) or [ALL[arguments.configs]]
    for configuration in chosen:
        found = explore(World(configuration), seconds_max=until - time.process_time())
        print(f"{configuration.name}: {found}", flush=True)
        wrong += found.counterexample is not None
        complete += found.complete
    print(f"{complete} of {len(chosen)} complete, {wrong} violated", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
