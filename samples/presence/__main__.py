"""`python -m samples.presence`: players and games on a cluster of silo processes of its own."""

from __future__ import annotations

import argparse
import sys

from samples.local_cluster import local_cluster, run_to_end
from samples.presence.arena import PLAYERS_PER_GAME, Plan, play


async def run(plan: Plan, silos: int) -> int:
    """Start the cluster and play."""
    async with local_cluster("samples.presence", silos=silos) as cluster:
        await play(cluster.client, plan)
    return 0


def main() -> int:
    """Read the arguments and run."""
    default = Plan()
    parser = argparse.ArgumentParser(prog="python -m samples.presence", description=__doc__)
    parser.add_argument("--silos", type=int, default=3, help="how many silo processes")
    parser.add_argument("--players", type=int, default=default.players, help=f"{PLAYERS_PER_GAME} of them play a game")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="for how long heartbeats are sent")
    parser.add_argument("--beat-every", type=float, default=default.beat_every_s, help="seconds between heartbeats")
    parser.add_argument("--seed", type=int, default=default.seed, help="which games move, and when each begins")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    if min(arguments.silos, arguments.players, arguments.seconds, arguments.beat_every) <= 0:
        parser.error("--silos, --players, --seconds and --beat-every must be above 0")
    plan = Plan(arguments.players, arguments.seconds, arguments.beat_every, arguments.seed, arguments.json)
    return run_to_end(run(plan, arguments.silos))


if __name__ == "__main__":
    sys.exit(main())
