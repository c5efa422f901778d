"""`python -m benchmarks.halo`: what the repartitioner makes of a workload, in simulation, with the classes as shipped.

Each case is run with each seed; figures are the means of the steady half, in brackets the least and the most. Remote is
the part of all messages that goes between silos. Moves are per hundred grains and minute. Count and load are those of
the fullest and of the busiest silo against their share. No network and no processor is simulated: this says how many
messages and moves there are, not how long they take.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.halo.cases import SEEDS, choose, run_all
from benchmarks.halo.charts import draw
from benchmarks.halo.upkeep import bytes_per_grain, per_message_ns
from benchmarks.results import FOLDER

QUICK = 0.1
QUICK_SEEDS = (1,)
TABLE_WIDTH = 130
UPKEEP_BARS_NS = {"remote": 1_000, "local": 500}
"""What watching one message may cost."""


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.halo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="CASE", help="cases whose names begin so")
    parser.add_argument("--full", action="store_true", help="those too that take long and have no bar")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help=f"by default {SEEDS}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many are run side by side")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the simulated time and one seed: bars say nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    parser.add_argument(
        "--save", type=Path, nargs="?", const=FOLDER, metavar="FOLDER", help="write halo.json and halo.png"
    )
    parser.add_argument("--no-upkeep", action="store_true", help="leave out what watching costs")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    arguments = parse(given)
    cases = choose(arguments.only, with_long=arguments.full)
    if not cases:
        print("no case has such a name", file=sys.stderr)
        return 2
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    told = run_all(cases, seeds, jobs=arguments.jobs, quick=QUICK if arguments.quick else 1.0)
    told["upkeep"] = {} if arguments.no_upkeep else _upkeep()
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        show(Console(width=None if sys.stdout.isatty() else TABLE_WIDTH), told)
    if arguments.save is not None:
        arguments.save.mkdir(parents=True, exist_ok=True)
        (arguments.save / "halo.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(draw(told, arguments.save / "halo.png") or f"saved in {arguments.save}", file=sys.stderr)
    missed = [bar for bar in told["bars"] if not bar["passes"]]
    return 1 if arguments.check and missed else 0


def _upkeep() -> dict[str, Any]:
    return {"per_message_ns": per_message_ns(), "bars_ns": UPKEEP_BARS_NS, "bytes_per_grain": bytes_per_grain()}


def show(console: Console, told: Mapping[str, Any]) -> None:
    """The table, and what was wanted."""
    table = Table(title=f"steady half, seeds {', '.join(map(str, told['seeds']))}", title_justify="left")
    for name in ("case", "remote", "moves %/min", "cold moves", "peak", "count", "load", "sent/s", "CPU s"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for row in told["cases"]:
        remote, moves = row["remote"], row["moves_per_min"]
        table.add_row(
            row["name"] + (f"\n  {row['words']}" if row["words"] else ""),
            f"{remote['mean']:.3f} ({remote['min']:.3f} to {remote['max']:.3f})",
            f"{100 * moves['mean']:.2f}",
            f"{row['cold_moves']['mean']:.2f}",
            f"{row['moves_peak']['mean']:.0f}",
            f"{row['count_ratio']['mean']:.3f}",
            f"{row['load_ratio']['mean']:.2f}",
            f"{row['sent']['mean']:.2f}",
            f"{row['cpu_s']['mean']:.1f}",
        )
    console.print(table)
    for bar in told["bars"]:
        verdict = "ok" if bar["passes"] else "MISSED"
        console.print(
            f"{bar['case']} {bar['figure']}: {bar['value']:.4f}, wanted at most {bar['bound']:.4f}: {verdict}"
        )
    if told["upkeep"]:
        cost = told["upkeep"]["per_message_ns"]
        console.print(
            f"watching a message: {cost['remote']:.0f} ns between silos, {cost['remote_crowded']:.0f} with a grain of "
            f"many peers, {cost['local']:.0f} within a silo; {told['upkeep']['bytes_per_grain']:.0f} bytes per grain"
        )


if __name__ == "__main__":
    sys.exit(main())
