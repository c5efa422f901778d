"""`python -m benchmarks.placement`: what becomes of balance and locality, rule by rule, when a cluster changes.

Silos {3, 10, 30, 100} × grains on each {100, 1k, 10k} × call graphs × events, with the planner and the placement as
they are shipped beside the rules of other systems. Without more it plays a part of the matrix that takes a minute or
two; --full plays all of it. The same seed gives the same tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.placement.events import EVENTS, Cell, Outcome, play
from benchmarks.placement.graphs import GRAPHS
from benchmarks.placement.report import as_json, draw, print_cell, save
from benchmarks.placement.rules import rules
from benchmarks.results import FOLDER

SILOS, GRAINS_EACH = (3, 10, 30, 100), (100, 1_000, 10_000)
USUAL_SILOS, USUAL_GRAINS = (3, 10, 30), (100, 1_000)
QUICK = (Cell(3, 100, "halo", "+30%"), Cell(10, 100, "communities", "hot"))
QUICK_S = 300.0


def main(given: list[str] | None = None) -> int:
    arguments = _parse(given)
    console = Console(width=None if sys.stdout.isatty() else 150)
    outcomes: list[Outcome] = []
    kept: list[Outcome] = []
    for cell in _cells(arguments):
        of_cell = [
            play(cell, rule, seed=arguments.seed, **({"length_s": QUICK_S} if arguments.quick else {}))
            for rule in rules(arguments.rule)
        ]
        outcomes += of_cell
        if not arguments.json:
            print_cell(console, cell, of_cell)
        if arguments.save is not None:  # after each cell: a long run that is broken off is not lost
            kept = save(of_cell, arguments.seed, arguments.save)
    if arguments.json:
        print(json.dumps(as_json(outcomes, arguments.seed), indent=1))
    if arguments.save is not None:
        print(draw(kept, arguments.save) or f"saved in {arguments.save}", file=sys.stderr)
    return 0


def _cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    if arguments.quick:
        yield from QUICK
        return
    for silos in arguments.silos or (SILOS if arguments.full else USUAL_SILOS):
        for grains in arguments.grains or (GRAINS_EACH if arguments.full else USUAL_GRAINS):
            for graph in arguments.graph or GRAPHS:
                for event in arguments.event or EVENTS:
                    yield Cell(silos, grains, graph, event)


def _parse(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.placement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--silos", type=int, action="append", metavar="N", help="only clusters of so many silos")
    parser.add_argument("--grains", type=int, action="append", metavar="N", help="only so many grains on each")
    parser.add_argument("--graph", action="append", choices=GRAPHS, help="only this call graph")
    parser.add_argument("--event", action="append", choices=EVENTS, help="only this event")
    parser.add_argument("--rule", action="append", choices=[rule.name for rule in rules()], help="only this rule")
    parser.add_argument("--full", action="store_true", help="the whole matrix; the largest cells take minutes each")
    parser.add_argument("--quick", action="store_true", help="two small cells, and short: does it run?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--save",
        nargs="?",
        type=Path,
        const=FOLDER,
        metavar="FOLDER",
        help="keep the results as placement.json, placement.md and a chart, in place of those of the same cells;"
        " benchmarks/results where none is named",
    )
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
