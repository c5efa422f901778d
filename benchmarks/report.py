"""What a run prints: a table for people, or one JSON object."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness import Judgement, Measured
from benchmarks.peers.known import PREFIX
from silo.embedded import EmbeddedServerFailed, find_server

FORMAT = 1
"""Of the JSON object: fields are only added to it."""
TABLE_WIDTH = 120
"""In characters, where the table does not go to a terminal."""
SHORT_FROM = 100
"""Figures from here on are shown without decimals."""
SMALL_UP_TO = 1
"""Below this with three."""
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


@functools.cache
def machine() -> Mapping[str, object]:
    """What they depend on besides, and what a table has no room for."""
    return {"cpu": _cpu_model(), "kernel": platform.release(), "uvloop": _version("uvloop"), "redis": _redis_version()}


def _cpu_model() -> str:
    try:
        told = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        told = None
    return told[1].strip() if told else platform.processor() or "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _redis_version() -> str:
    """Of the server that the runs use, such as `valkey-server 9.1.2`."""
    try:
        server = find_server()
        told = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    except (EmbeddedServerFailed, OSError, subprocess.CalledProcessError):
        return "unknown"
    number = re.search(r"\bv=(\S+)", told)
    return f"{server.name} {number[1] if number else 'of an unknown version'}"


def as_json(
    measured: Mapping[str, Measured], judgements: Sequence[Judgement], *, rounds: int, seconds: float
) -> dict[str, object]:
    return {
        "v": FORMAT,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "surroundings": {**surroundings(), **machine()},
        "rounds": rounds,
        "seconds": seconds,
        "rows": [_row_as_json(one, measured) for one in measured.values()],
        "bars": [
            {
                **dataclasses.asdict(judgement.bar),
                "beside": judgement.beside or None,
                "candidates": list(judgement.bar.others),
                "times": _plain(judgement.value),
                "passes": judgement.passes,
                "reaches_goal": judgement.reaches_goal,
                "told": str(judgement),
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
        "scene": row.scene.name,
        "once": row.scene.once,
        "error": one.error or None,
        "skipped": one.skipped or None,
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
        "x: multiples of the row beside it, medians over the repetitions. Rows that take long are measured once.",
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
        if not one.skipped:
            table.add_row(*_cells(one, measured))
    console.print(table, highlight=False)
    for names, why in skipped(measured).items():
        console.print(f"[yellow]{names}: {escape(why)}[/yellow]", highlight=False)
    noise = max((each.noise for one in measured.values() for each in one.samples), default=0.0)
    if noise >= NOISE_NOTED:
        console.print(
            f"[yellow]other processes took up to {noise:.1f} cores meanwhile: believe the ratios rather[/yellow]"
        )
    for one in measured.values():
        row = one.row
        if one.samples and not math.isnan(one.median.bytes_each):
            console.print(f"{row.name}: {one.median.bytes_each:,.0f} bytes each", highlight=False)
        if one.samples and not math.isnan(one.median.failed):
            console.print(f"{row.name}: {one.median.failed:,.0f} failed", highlight=False)
        if one.samples and row.scene.once:
            console.print(f"{row.name}: {one.median.count:,} in {one.median.wall_s:.2f} s", highlight=False)
    for judgement in judgements:
        if judgement.passes is not None:
            console.print(f"[{'green' if judgement.passes else 'red'}]{judgement}[/]", highlight=False)
    unjudged = [judgement for judgement in judgements if judgement.passes is None]
    if unjudged:
        missing = ", ".join(dict.fromkeys(name for each in unjudged for name in each.bar.others))
        console.print(f"not judged, since these were not measured: {missing}", highlight=False)


def skipped(measured: Mapping[str, Measured]) -> dict[str, str]:
    """Why rows could not be measured here, by their names; by how they begin where several of a kind share a reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, one in measured.items():
        if one.skipped:
            kind = ".".join(name.split(".")[: 2 if name.startswith(PREFIX) else 1])
            groups.setdefault((kind, one.skipped), []).append(name)
    return {(names[0] if len(names) == 1 else f"{kind}.*"): why for (kind, why), names in groups.items()}


def _cells(one: Measured, measured: Mapping[str, Measured]) -> list[str]:
    row = one.row
    if one.error or not one.samples:
        return [row.name, *[""] * 5, f"[red]{escape(one.error)}[/red]"]
    median = one.median
    cells = [
        row.name,
        _short(median.per_s),
        _short(median.p50_us),
        _short(median.p99_us),
        _short(median.cpu_s) if median.cpu_s >= SHORT_FROM else f"{median.cpu_s:.2f}",
        f"{median.noise:.2f}",
        ", ".join(row.processes),
    ]
    if row.beside is None:
        return cells
    other = measured[row.beside]
    return [*cells, row.beside, *(f"{one.times(other, figure):.2f}" for figure in ("per_s", "p50_us"))]


def _short(figure: float) -> str:
    if math.isnan(figure):
        return ""
    if figure < SMALL_UP_TO:
        return f"{figure:.3f}"
    return f"{figure:,.0f}" if figure >= SHORT_FROM else f"{figure:.1f}"
