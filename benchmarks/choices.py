"""What each choice of the runtime's brings: `python -m benchmarks.choices` measures with and without it, alternating.

Each is undone from outside, in every process of a run, and the same rows are measured: by environment variables of gRPC
and of the runtime, or by modules that Python finds before the real ones. `--other NAME=PYTHON` measures under another
environment, too, such as one with another grpcio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.report import machine, surroundings
from benchmarks.results import FOLDER
from benchmarks.stage import ROOT

FILE: Final = "choices.json"
ROWS: Final = ("remote.1", "remote.64", "client.1", "client.64")
FIGURES: Final = ("p50_us", "cpu_s")
ROUNDS, SECONDS, ALTERNATIONS = 2, 0.2, 3
AS_IT_IS: Final = "as it is"


@dataclass(frozen=True, slots=True)
class Undone:
    """A choice that is not made.

    Args:
        environment: what undoes it.
        modules: modules by name, found before those of that name.
    """

    what: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    modules: Mapping[str, str] = field(default_factory=dict[str, str])


CHOICES: Final = (
    Undone(AS_IT_IS),
    Undone("asyncio's own loop instead of uvloop", modules={"uvloop": "raise ImportError('left out')\n"}),
    Undone("gRPC with its event engine", environment={"GRPC_EXPERIMENTS": ""}),
    Undone("no direct lane", environment={"SILO_DIRECT": "false"}),
    Undone(
        "the garbage collector as it comes",
        modules={"sitecustomize": "import gc\n\ngc.set_threshold = lambda *_: None\ngc.freeze = lambda: None\n"},
    ),
)


def run(choice: Undone, python: str) -> dict[str, dict[str, float]]:
    """One run under it: figures by row. What goes wrong with it is told where this process tells such things.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="silo-choices-") as folder:
        for name, text in choice.modules.items():
            (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        path = os.pathsep.join(filter(None, [folder, str(ROOT), os.environ.get("PYTHONPATH", "")]))
        only = [word for row in ROWS for word in ("--only", row)]
        length = ["--rounds", str(ROUNDS), "--seconds", str(SECONDS)]
        told = subprocess.run(
            [python, "-m", "benchmarks", "--json", *only, *length],
            env={**os.environ, **choice.environment, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    rows = {row["name"]: row for row in json.loads(told)["rows"]}
    return {name: {figure: rows[name][figure] for figure in FIGURES} for name in ROWS}


def gains(runs: Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]) -> list[dict[str, Any]]:
    """For each choice that is undone: what the rows then take, in multiples of what they take as it is, which is the
    median over the alternations."""
    found: list[dict[str, Any]] = []
    for what, theirs in runs.items():
        if what == AS_IT_IS:
            continue
        times = {
            row: {
                figure: round(
                    statistics.median(
                        undone[row][figure] / made[row][figure]
                        for undone, made in zip(theirs, runs[AS_IT_IS], strict=True)
                    ),
                    2,
                )
                for figure in FIGURES
            }
            for row in ROWS
        }
        found.append({"without": what, "times": times})
    return found


def table(folder: Path = FOLDER) -> str:
    """What is kept there, for people."""
    kept: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    lines = ["| instead | " + " | ".join(f"{row} p50 | CPU" for row in ROWS) + " |"]
    lines.append("|---|" + "--:|--:|" * len(ROWS))
    for gain in kept["gains"]:
        cells = [f"{gain['times'][row][figure]:.2f} ×" for row in ROWS for figure in FIGURES]
        lines.append(f"| {gain['without']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.choices", description="what each choice of the runtime brings"
    )
    parser.add_argument("--save", nargs="?", type=Path, const=FOLDER, metavar="FOLDER", help="keep it there, too")
    parser.add_argument(
        "--other", action="append", default=[], metavar="NAME=PYTHON", help="another environment to measure under"
    )
    parser.add_argument("--alternations", type=int, default=ALTERNATIONS, help="runs of each (%(default)s)")
    arguments = parser.parse_args(given)
    others = dict(item.split("=", 1) for item in arguments.other)
    runs: dict[str, list[dict[str, dict[str, float]]]] = {}
    plan = [(choice, sys.executable) for choice in CHOICES]
    plan += [(Undone(name), python) for name, python in others.items()]
    for number in range(arguments.alternations):
        first = number % len(plan)  # another one each time: whatever comes first may find the machine in another state
        for choice, python in plan[first:] + plan[:first]:
            runs.setdefault(choice.what, []).append(run(choice, python))
    text = json.dumps({"surroundings": {**surroundings(), **machine()}, "gains": gains(runs)}, indent=1)
    print(text)
    if arguments.save is not None:
        arguments.save.mkdir(parents=True, exist_ok=True)
        (arguments.save / FILE).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
