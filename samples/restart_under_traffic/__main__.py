"""`python -m samples.restart_under_traffic`: the only silo is killed four times, under traffic and without."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from rich.console import Console

from samples.local_cluster import local_cluster, run_to_end
from samples.restart_under_traffic.outage import Case, Moment, Outage, play

INDENT = "  "


async def run(arguments: argparse.Namespace) -> int:
    """Play each case on a cluster of one silo, and report."""
    console = Console(highlight=False, quiet=arguments.json)

    def tell(moment: Moment) -> None:
        console.print(f"{INDENT}{moment.at_s:+8.3f} s  {moment.what}", markup=False)

    outages: list[Outage] = []
    async with local_cluster("samples.restart_under_traffic", silos=1) as cluster:
        for case in Case:
            console.print(f"{case.title}: {case.what}", style="bold")
            outage = Outage(case, tell)
            outages.append(outage)
            await play(cluster, outage, arguments.outage)
            console.print(
                f"{INDENT}{outage.calls} calls, {outage.answered} answered, {outage.failed} failed", style="dim"
            )
    good = all(outage.is_good for outage in outages)
    if arguments.json:
        print(json.dumps({"v": 1, "outage_s": arguments.outage, "cases": [told(each) for each in outages], "ok": good}))
        return 0 if good else 1
    late = [outage.case.title for outage in outages if not outage.is_good]
    ending = f"too late: {', '.join(late)}" if late else "each time the grain was back as soon as its silo was"
    console.print(ending, style="bold red" if late else "bold green")
    return 0 if good else 1


def told(outage: Outage) -> dict[str, object]:
    """The account of one outage, for machines."""
    return {
        "case": outage.case.title,
        "within_s": outage.case.within_s,
        "recovered_s": outage.recovered_s,
        "calls": outage.calls,
        "answered": outage.answered,
        "failed": outage.failed,
        "timeline": [asdict(moment) for moment in outage.moments],
        "ok": outage.is_good,
    }


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m samples.restart_under_traffic", description=__doc__)
    parser.add_argument("--outage", type=float, default=5.0, help="seconds for which there is no silo, each time")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    if arguments.outage <= 0:
        parser.error("--outage must be above 0")
    return run_to_end(run(arguments))


if __name__ == "__main__":
    sys.exit(main())
