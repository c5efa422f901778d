"""`python -m benchmarks`: measures the rows, prints them, and with --check holds them to the bars.

Without more it measures the rows that a minute or two is enough for, all of them in each of five rounds. Rows that
take long (many grains, many silos, silos that leave) are measured once each, in processes of their own, and only with
--full or where --only names them; --list says which those are.

Peers are measured in the same rounds, those that are installed (pip install 'grain-silo[peers]'): `--only peer` chooses
them and what they are compared with, `--only peer.casty` one of them. A quick run leaves them out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn

from benchmarks import (
    rows_calls,
    rows_floors,
    rows_lane,
    rows_lifecycle,
    rows_parts,
    rows_peers,
    rows_scale,
    rows_telemetry,
)
from benchmarks.bars import BARS
from benchmarks.harness import Row, Rows, judge, measure
from benchmarks.peers.known import KNOWN
from benchmarks.peers.process import python_variable
from benchmarks.plots import plot
from benchmarks.report import TABLE_WIDTH, as_json, print_table
from benchmarks.results import FOLDER, save
from silo.application import run_on

ROUNDS, SECONDS = 5, 0.4
QUICK_ROUNDS, QUICK_SECONDS = 2, 0.1


def all_rows() -> Rows:
    rows = Rows()
    for module in (
        rows_floors,
        rows_calls,
        rows_lane,
        rows_lifecycle,
        rows_parts,
        rows_telemetry,
        rows_scale,
        rows_peers,
    ):
        module.add_rows(rows)
    return rows


async def run(arguments: argparse.Namespace, rows: list[Row]) -> int:
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    with _progress() as show:
        measured = await measure(rows, rounds=rounds, seconds=seconds, progress=show)
    judgements = judge(BARS, measured, arguments.slack)
    told = as_json(measured, judgements, rounds=rounds, seconds=seconds)
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        print_table(
            Console(width=None if sys.stdout.isatty() else TABLE_WIDTH),
            measured,
            judgements,
            rounds=rounds,
            seconds=seconds,
        )
    if arguments.save is not None:
        saved = save(told, arguments.save)
        print(plot(saved, arguments.save) or f"saved in {arguments.save}", file=sys.stderr)
    failed = [f"{one.row.name}: {one.error}" for one in measured.values() if one.error]
    if arguments.check:
        failed += [str(judgement) for judgement in judgements if judgement.passes is False]
    for failure in failed:
        print(failure, file=sys.stderr)
    return 1 if failed else 0


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    """Shows on a terminal what is being done; drawn only when that changes, since drawing takes time from callers."""
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("")

        def show(what: str) -> None:
            progress.update(task, description=what, refresh=console.is_terminal)

        yield show


def parse(rows: Rows, given: list[str] | None = None) -> tuple[argparse.Namespace, list[Row]]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW",
        help="the row, or rows whose name begins so, and what they are compared with; those that take long included",
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="the interpreter that a peer runs under, where it is installed; or BENCHMARK_PYTHON_NAME names it",
    )
    parser.add_argument("--full", action="store_true", help="the rows that take long, too: half an hour")
    parser.add_argument("--list", action="store_true", help="name the rows, and measure nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a row falls short of its bar")
    parser.add_argument(
        "--slack", type=float, default=1.0, metavar="X", help="with --check: X times worse still passes"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short repetitions of the rows that share their processes: does it run, and roughly as it should?",
    )
    parser.add_argument(
        "--save",
        nargs="?",
        type=Path,
        const=FOLDER,
        metavar="FOLDER",
        help="keep the results as latest.json, latest.md and plots in this folder, in place of those of the same rows;"
        " benchmarks/results where none is named",
    )
    parser.add_argument("--rounds", type=int, help=f"repetitions of each row ({ROUNDS})")
    parser.add_argument("--seconds", type=float, help=f"length of a repetition ({SECONDS})")
    arguments = parser.parse_args(given)
    for name in ("rounds", "seconds", "slack"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} must be above 0")
    for each in arguments.peer_python:
        peer, _, python = each.partition("=")
        if peer not in KNOWN or not python:
            parser.error(f"--peer-python {each}: write NAME=PYTHON, where NAME is one of {', '.join(KNOWN)}")
        os.environ[python_variable(peer)] = python
    try:
        return arguments, rows.chosen(arguments.only, full=arguments.full, quick=arguments.quick)
    except ValueError as error:
        parser.error(str(error))


def main(given: list[str] | None = None) -> int:
    arguments, rows = parse(all_rows(), given)
    if arguments.list:
        for row in all_rows().all() if not arguments.only else rows:
            asked = ", when asked for" if row.scene.asked else ""
            print(f"{row.name:<16} {row.what} ({', '.join(row.processes)}{asked})")
        return 0
    return run_on(None, run(arguments, rows))


if __name__ == "__main__":
    sys.exit(main())
