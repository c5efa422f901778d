"""What is seen of a run while it goes on: the table of its steps, where the grains are, and a progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from samples.rolling.steps import Step, Steps

WIDTH = 80
"""Columns of a terminal that all of it fits into."""
REFRESHES_PER_S = 8
WHAT_WIDTH = 26
HEADER = f"{'':<{WHAT_WIDTH}}{'time':>8}{'calls':>9}{'slowest':>10}{'moves':>7}{'lost':>6}{'run twice':>11}"


class Display:
    """The table, live where there is a terminal to draw on; elsewhere a line for each step that has ended.

    Args:
        quiet: print no lines: standard output is for the JSON, and a table is only drawn on standard error.
    """

    def __init__(self, steps: Steps, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=quiet, highlight=False, soft_wrap=True)
        self._steps = steps
        self._quiet = quiet
        self._live: Live | None = None
        steps.on_done = self._on_done

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self.console,
                refresh_per_second=REFRESHES_PER_S,
                transient=self._quiet,
            )
            self._live.__enter__()
        elif not self._quiet:
            self.console.print(HEADER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def _on_done(self, step: Step) -> None:
        if self._live is None and not self._quiet:
            self.console.print(line(step))

    def _render(self) -> RenderableType:
        current = self._steps.current
        rows = [Text(HEADER, "bold"), *(line(step) for step in self._steps.done)]
        if current is None:
            return Group(*rows)
        return Group(*rows, line(current, "cyan"), Text(), _bars(self._steps.tally.spread), self._progress())

    def _progress(self) -> RenderableType:
        row = Table.grid(padding=(0, 2))
        progress = self._steps.progress
        row.add_row(ProgressBar(total=1.0, completed=progress, width=WIDTH - 8), f"{progress:4.0%}")
        return row


def line(step: Step, style: str = "") -> Text:
    """One row of the table."""
    text = Text(f"{step.what:<{WHAT_WIDTH}}{step.seconds:>6.1f} s", style, no_wrap=True)
    if not step.calls:
        return text
    text.append(f"{step.calls:>9,}{step.slowest_ms:>7.0f} ms{step.moves:>7,}")
    text.append(f"{step.lost:>6}", "bold red" if step.lost else "")
    return text.append(f"{step.repeated:>11}", "bold red" if step.repeated else "")


def _bars(spread: Mapping[str, int]) -> RenderableType:
    """How many grains each silo has, as bars."""
    rows = Table.grid(padding=(0, 2))
    total = sum(spread.values())
    for silo, grains in spread.items():
        rows.add_row(silo, ProgressBar(total=total, completed=grains, width=WIDTH - 24), f"{grains:,} grains")
    return rows
