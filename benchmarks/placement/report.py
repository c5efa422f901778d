"""What was played, for people and for programs: tables, a page, JSON and charts."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.placement.events import Cell, Outcome
from benchmarks.plots import DPI, OURS, PALE, PEER, WIDTH_IN

FILE: Final = "placement.json"
HEADS: Final = (
    "rule",
    "moves",
    "fewest",
    "peak/s",
    "to 5 %",
    "spread",
    "both ways",
    "tail/min",
    "remote: before",
    "peak",
    "mean",
)


def as_json(outcomes: Sequence[Outcome], seed: int) -> dict[str, Any]:
    return {"v": 1, "seed": seed, "outcomes": [asdict(outcome) for outcome in outcomes]}


def save(outcomes: Sequence[Outcome], seed: int, folder: Path) -> list[Outcome]:
    """Keep these beside those of other cells that were played with the same seed; returns all that is kept now."""
    folder.mkdir(parents=True, exist_ok=True)
    kept: dict[tuple[Cell, str], Outcome] = {}
    if (folder / FILE).exists():
        before = msgspec.json.decode((folder / FILE).read_bytes(), type=_Kept)
        kept = {(each.cell, each.rule): each for each in before.outcomes} if before.seed == seed else {}
    kept.update({(each.cell, each.rule): each for each in outcomes})
    every = sorted(
        kept.values(), key=lambda each: (each.cell.graph, each.cell.event, each.cell.silos, each.cell.grains_each)
    )
    lines = ",\n".join(json.dumps(each) for each in as_json(every, seed)["outcomes"])
    (folder / FILE).write_text(f'{{"v": 1, "seed": {seed}, "outcomes": [\n{lines}\n]}}\n', encoding="utf-8")
    (folder / FILE).with_suffix(".md").write_text(as_page(every), encoding="utf-8")
    return every


def quote(folder: Path, silos: str, grains_each: str, graph: str, event: str) -> str:
    """The kept table of one cell, for a page. Raises KeyError for one that is not kept."""
    cell = Cell(int(silos), int(grains_each), graph, event)
    kept = msgspec.json.decode((folder / FILE).read_bytes(), type=_Kept)
    found = [outcome for outcome in kept.outcomes if outcome.cell == cell]
    if not found:
        raise KeyError(str(cell))
    return _table(found)


def _table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "|---|" + "--:|" * (len(HEADS) - 1)]
    lines += ["| " + " | ".join(_cells(outcome)) + " |" for outcome in outcomes]
    return "\n".join(lines)


class _Kept(msgspec.Struct):
    v: int
    seed: int
    outcomes: list[Outcome]


def print_cell(console: Console, cell: Cell, outcomes: Sequence[Outcome]) -> None:
    table = Table(title=str(cell), title_justify="left")
    for place, head in enumerate(HEADS):
        table.add_column(head, justify="right" if place else "left")
    for outcome in outcomes:
        table.add_row(*_cells(outcome))
    console.print(table)


def as_page(outcomes: Sequence[Outcome]) -> str:
    """All tables as one page."""
    parts = [
        "# Balance and locality after changes\n\nWritten by `python -m benchmarks.placement --save`; nothing here is"
        " written by hand. [docs/placement.md](../../docs/placement.md) says what it means."
    ]
    for cell in dict.fromkeys(outcome.cell for outcome in outcomes):
        parts.append(f"## {cell}\n\n{_table([outcome for outcome in outcomes if outcome.cell == cell])}")
    return "\n\n".join(parts) + "\n"


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.rule,
        f"{outcome.moves:,}",
        f"{outcome.moves_fewest:,}",
        f"{outcome.peak_per_s:,.1f}",
        "never" if outcome.near_even_s is None else f"{outcome.near_even_s:.0f} s",
        f"{outcome.spread:.3f}",
        f"{outcome.both_ways:,}",
        f"{outcome.tail_per_min:.1f}",
        *(
            "" if value is None else f"{value:.3f}"
            for value in (outcome.remote_before, outcome.remote_peak, outcome.remote_mean)
        ),
    )


def draw(outcomes: Sequence[Outcome], folder: Path) -> str:
    """A chart of moves over the fewest, and of spread, for each event; why nothing was drawn, or nothing."""
    try:
        plt: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return f"saved in {folder} without plots, which need matplotlib: pip install 'grain-silo[plots]'"
    importlib.import_module("matplotlib").use("agg")
    events = list(dict.fromkeys(outcome.cell.event for outcome in outcomes))
    rules = list(dict.fromkeys(outcome.rule for outcome in outcomes))
    figure, axes = plt.subplots(
        2,
        len(events),
        figsize=(WIDTH_IN * 1.4, 1.2 + 0.55 * len(rules)),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for column, event in enumerate(events):
        for row, (title, figure_of) in enumerate((("spread at the end", _spread), ("remote, mean of 10 min", _remote))):
            one = axes[row][column]
            for place, rule in enumerate(rules):
                values = [
                    value
                    for each in outcomes
                    if (each.cell.event, each.rule) == (event, rule) and (value := figure_of(each)) is not None
                ]
                colour = OURS if rule.startswith("ours") else PEER
                one.scatter(values, [place] * len(values), s=14, alpha=0.5, color=colour, linewidths=0)
            one.set_yticks(range(len(rules)), rules)
            if row == 0:
                one.set_title(event, loc="left", fontsize=10, fontweight="bold")
            one.set_xlabel(title, loc="left", fontsize=8, color=PALE)
            one.tick_params(labelsize=7.5, colors=PALE)
            one.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()  # all share it
    figure.savefig(folder / "placement.png", dpi=DPI)
    plt.close(figure)
    return ""


def _spread(outcome: Outcome) -> float:
    return outcome.spread


def _remote(outcome: Outcome) -> float | None:
    return outcome.remote_mean
