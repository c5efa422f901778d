"""What a run prints: a table for people, or one JSON object."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Judgement, Measured

FORMAT = 1
"""Of the JSON object: fields are only added to it."""
TABLE_WIDTH = 120
"""In characters, where the table does not go to a terminal."""
SHORT_FROM = 100
"""Figures from here on are shown without decimals."""
NOISE_NOTED = 0.3
"""Cores of other load from which on a run says that it was disturbed."""


def surroundings() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "grpcio": version("grpcio"),
        "load_1m": round(os.getloadavg()[0], 2),
        "loop": "uvloop" if "uvloop" in sys.modules else "asyncio",
    }


def as_json(
    measured: Mapping[str, Measured], judgements: Sequence[Judgement], *, rounds: int, seconds: float
) -> dict[str, object]:
    return {
        "v": FORMAT,
        "surroundings": surroundings(),
        "rounds": rounds,
        "seconds": seconds,
        "rows": [_row_as_json(one, measured) for one in measured.values()],
        "bars": [
            {
                **dataclasses.asdict(judgement.bar),
                "times": _plain(judgement.times),
                "passes": judgement.passes,
            }
            for judgement in judgements
        ],
    }


def _row_as_json(one: Measured, measured: Mapping[str, Measured]) -> dict[str, Any]:
    row = one.row
    found: dict[str, Any] = {
        "name": row.name,
        "what": row.what,
        "unit": row.unit,
        "processes": list(row.processes),
        "beside": row.beside,
        "error": one.error or None,
    }
    if not one.samples:
        return found
    found.update((name, _plain(value)) for name, value in dataclasses.asdict(one.median).items())
    found["samples"] = [
        {name: _plain(value) for name, value in dataclasses.asdict(each).items()} for each in one.samples
    ]
    if row.beside is not None:
        other = measured[row.beside]
        found["times"] = {
            "per_s": _plain(one.times(other, "per_s")),
            "p50_us": _plain(one.times(other, "p50_us")),
            "cpu_s": _plain(one.times(other, "cpu_s")),
        }
    return found


def _plain(value: float) -> float | int | None:
    """JSON has no NaN."""
    if isinstance(value, int):
        return value
    return round(value, 4) if math.isfinite(value) else None


def print_table(
    console: Console, measured: Mapping[str, Measured], judgements: Sequence[Judgement], *, rounds: int, seconds: float
) -> None:
    table = Table(
        title=f"medians of {rounds} repetitions of {seconds:g} s; "
        + ", ".join(f"{name} {value}" for name, value in surroundings().items()),
        title_justify="left",
        caption="CPU s: per 100,000, of all the processes named. noise: cores that others took meanwhile.\n"
        "x: multiples of the row beside it, medians over the repetitions.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("row", no_wrap=True)
    for heading in ("per s", "p50 us", "p99 us", "CPU s", "noise"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("processes")
    table.add_column("beside", no_wrap=True)
    for heading in ("x per s", "x p50"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in measured.values():
        table.add_row(*_cells(one, measured))
    console.print(table, highlight=False)
    noise = max((each.noise for one in measured.values() for each in one.samples), default=0.0)
    if noise >= NOISE_NOTED:
        console.print(
            f"[yellow]other processes took up to {noise:.1f} cores meanwhile: believe the ratios rather[/yellow]"
        )
    for judgement in judgements:
        console.print(f"[{'green' if judgement.passes else 'red'}]{judgement}[/]", highlight=False)


def _cells(one: Measured, measured: Mapping[str, Measured]) -> list[str]:
    row = one.row
    if one.error or not one.samples:
        return [row.name, *[""] * 5, f"[red]{one.error}[/red]"]
    median = one.median
    cells = [
        row.name,
        _short(median.per_s),
        _short(median.p50_us),
        _short(median.p99_us),
        f"{median.cpu_s:.2f}",
        f"{median.noise:.2f}",
        ", ".join(row.processes),
    ]
    if row.beside is None:
        return cells
    other = measured[row.beside]
    return [*cells, row.beside, f"{one.times(other, 'per_s'):.2f}", f"{one.times(other, 'p50_us'):.2f}"]


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= SHORT_FROM else f"{figure:.1f}"
