"""The results that are kept: `benchmarks/results/latest.json`, and the same for people in `latest.md`.

A run takes the place of the rows and bars that it measured, and leaves the others, each of which names its run: what
takes long need not be measured again with the rest. Every ratio is of one run. Results of another machine, or of other
versions, go at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

FOLDER: Final = Path(__file__).resolve().parent / "results"
LATEST: Final = "latest.json"
TABLE: Final = "latest.md"
KEPT_V: Final = 1
COMPARABLE: Final = ("cpu", "cpus", "kernel", "python", "grpcio", "uvloop", "loop", "redis", "platform")
"""What must be the same for results to stand beside each other."""

Kept = dict[str, Any]
"""`runs` by their time, and `rows` and `bars` with the run that each is of."""


def load(folder: Path = FOLDER) -> Kept:
    """What is kept there. Raises FileNotFoundError."""
    return cast("Kept", json.loads((folder / LATEST).read_text(encoding="utf-8")))


def save(run: Mapping[str, Any], folder: Path = FOLDER) -> Kept:
    """Take this run in, write both files, and return what is kept now."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        before = load(folder)
    except FileNotFoundError:
        before = None
    kept = merged(before, run)
    (folder / LATEST).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (folder / TABLE).write_text(as_page(kept), encoding="utf-8")
    return kept


def merged(before: Kept | None, run: Mapping[str, Any]) -> Kept:
    """What is kept after this run."""
    when = run["when"]
    if before is None or not before["runs"] or _differ(next(iter(before["runs"].values())), run):
        before = {"v": KEPT_V, "runs": {}, "rows": [], "bars": []}
    measured = {row["name"] for row in run["rows"] if not row.get("skipped")}
    rows = {row["name"]: row for row in before["rows"]}
    rows.update({row["name"]: {**row, "run": when} for row in run["rows"] if row["name"] in measured})
    bars = [bar for bar in before["bars"] if bar["row"] not in measured]
    bars += [{**bar, "run": when} for bar in run["bars"]]
    runs = {**before["runs"], when: {key: run[key] for key in ("surroundings", "rounds", "seconds")}}
    used = {each["run"] for each in (*rows.values(), *bars)}
    return {
        "v": KEPT_V,
        "runs": {key: runs[key] for key in sorted(used)},
        "rows": list(rows.values()),
        "bars": sorted(bars, key=lambda bar: str(bar["row"])),
    }


def _differ(kept_run: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    before, now = kept_run["surroundings"], run["surroundings"]
    return any(before.get(name) != now.get(name) for name in COMPARABLE)


# ---------------------------------------------------------------------------------------------------- for people


def as_page(kept: Kept) -> str:
    """The page of all results."""
    return (
        "\n\n".join(
            [
                "# Results\n\nWritten by `python -m benchmarks --save`; nothing here is written by hand."
                " [docs/performance.md](../../docs/performance.md) says what it means.",
                machine_lines(kept),
                "## Bars",
                bars_table(kept),
                "## Rows",
                rows_table(kept, [row["name"] for row in kept["rows"]]),
                "x: multiples of the row beside it. CPU: microseconds of processor time for one, of all processes of"
                " the row together. noise: cores that others took meanwhile.",
            ]
        )
        + "\n"
    )


def machine_lines(kept: Kept) -> str:
    """What it was measured on, and when."""
    runs: Mapping[str, Any] = kept["runs"]
    latest = runs[max(runs)]["surroundings"]
    days = sorted({when[:10] for when in runs})
    return (
        f"{latest['cpus']} cores of {latest['cpu']}, {latest['platform']} {latest['kernel']},"
        f" Python {latest['python']}, grpcio {latest['grpcio']}, uvloop {latest['uvloop']}, {latest['redis']};"
        f" {' and '.join(days) if len(days) < 3 else f'{days[0]} to {days[-1]}'}"
    )


def bars_table(kept: Kept) -> str:
    """All bars that could be judged, and what was left open."""
    lines = ["| row | figure | wanted | found | |", "|---|---|---|--:|---|"]
    open_bars: list[str] = []
    for bar in kept["bars"]:
        if bar["passes"] is None:
            open_bars.append(bar["row"])
            continue
        lines.append("| " + " | ".join(_bar_cells(bar)) + " |")
    if open_bars:
        lines.append(f"\nNot judged, since no peer was measured: {', '.join(dict.fromkeys(open_bars))}.")
    return "\n".join(lines)


WORDS: Final = {
    "per_s": "per second",
    "p50_us": "p50",
    "p99_us": "p99",
    "cpu_s": "CPU",
    "failed": "failed",
    "bytes_each": "bytes each",
}


def _bar_cells(bar: Mapping[str, Any]) -> list[str]:
    bound, times = bar["bound"], bar["times"]
    at = "at least" if bar["at"] == "least" else "at most"
    goal = f", goal {bar['goal']:g} ×" if bar["goal"] is not None else ""
    if bar["beside"] is None:
        wanted, found = f"{at} {bound:,g}", "–" if times is None else f"{times:,.0f}"
    else:
        of = f" {WORDS[bar['of']]}" if bar["of"] else ""
        wanted, found = f"{at} {bound:g} × {bar['beside']}{of}{goal}", "–" if times is None else f"{times:.3g} ×"
    return [bar["row"], WORDS[bar["figure"]], wanted, found, "ok" if bar["passes"] else "**falls short**"]


def rows_table(kept: Kept, names: list[str], *, brief: bool = False) -> str:
    """These rows. Raises KeyError for one that is not kept.

    Args:
        brief: what each row is stands for its name, and nothing beside it.
    """
    rows = {row["name"]: row for row in kept["rows"]}
    chosen = [rows[name] for name in names]
    figures = [name for name in HEADS if any(row.get(name) is not None for row in chosen)]
    head = [*([""] if brief else ["row", "what"]), *(HEADS[name] for name in figures)]
    head += [] if brief else ["beside", "× per s", "× p50"]
    lines = ["| " + " | ".join(head) + " |"]
    lines += ["|---|" + ("" if brief else "---|") + "--:|" * len(figures) + ("" if brief else "---|--:|--:|")]
    for row in chosen:
        cells = [*([] if brief else [row["name"]]), row["what"], *(_figure(row, name) for name in figures)]
        if not brief:
            times: Mapping[str, float | None] = row.get("times") or {}
            cells += [row["beside"] or "", *(_times(times.get(name)) for name in ("per_s", "p50_us"))]
        if row["error"]:
            cells[-1] = row["error"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


HEADS: Final = {
    "per_s": "per s",
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "cpu_s": "CPU µs",
    "bytes_each": "bytes each",
    "failed": "failed",
}
WHOLE_FROM: Final = 100
"""Figures from here on are shown without decimals."""


def _figure(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if name == "cpu_s":
        value *= 10  # seconds for 100,000: microseconds for one
    return f"{value:,.0f}" if value >= WHOLE_FROM or name in ("failed", "bytes_each") else f"{value:.3g}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
