"""The results as charts, for the pages: PNG files beside latest.json. They need matplotlib, the extra `plots`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.bars import BARS

Rows = Mapping[str, Mapping[str, Any]]
"""Rows as they are kept, by their names."""

OURS, FLOOR, PEER, BAR = "#0b6e8f", "#b8bec4", "#d98e32", "#b3261e"
"""Colours: the runtime's rows, floors, peers, and what is wanted."""
INK, PALE = "#26323a", "#6b7780"
WIDTH_IN, DPI = 9.0, 130
PAD_IN = 0.1
LINE_IN = 0.3
"""The height of one row of bars."""
ROOM = 1.28
"""The length of an axis, in lengths of its longest bar: room for the figure behind it."""
PEER_PREFIX: Final = "peer."


def plot(kept: Mapping[str, Any], folder: Path) -> str:
    """Draw what is kept; returns why nothing was drawn, or nothing."""
    try:
        plt: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return f"saved in {folder} without plots, which need matplotlib: pip install 'grain-silo[plots]'"
    importlib.import_module("matplotlib").use("agg")
    rows: Rows = {row["name"]: row for row in kept["rows"] if row.get("samples")}
    style = {
        "font.size": 9.5,
        "text.color": INK,
        "axes.edgecolor": PALE,
        "axes.labelcolor": INK,
        "xtick.color": PALE,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(style):
        for name, draw in (("calls", _calls), ("moves", _moves), ("memory", _memory), ("scale", _scale)):
            figure = draw(plt, rows)
            if figure is not None:
                figure.savefig(folder / f"{name}.png", dpi=DPI)
                plt.close(figure)
    return ""


# ---------------------------------------------------------------------------------------------------- bars, lying


Bars = Sequence[tuple[str, float, str]]
"""A label, a length and a colour each."""
Panel = tuple[str, Bars, str, float | None]
"""A title, bars, their unit, and what is wanted of them."""


def _lying(axes: Any, title: str, bars: Bars, unit: str, *, wanted: float | None = None) -> None:
    """One bar under the other, from zero, with its figure behind it."""
    labels, lengths, colours = zip(*bars, strict=True)
    places = range(len(bars))
    axes.barh(places, lengths, color=colours, height=0.66)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(*lengths, wanted or 0.0, 0.0) * ROOM)
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.set_xlabel(unit, loc="left", color=PALE)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.spines["left"].set_visible(False)
    for place, length in zip(places, lengths, strict=True):
        axes.annotate(
            _figure(length), (length, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    if wanted is not None:
        _wanted(axes, wanted)


def _wanted(axes: Any, at: float) -> None:
    axes.axvline(at, color=BAR, linewidth=1.1, linestyle=(0, (4, 2)))
    axes.annotate(
        "bar",
        (at, 1),
        xycoords=("data", "axes fraction"),
        xytext=(2, 1),
        textcoords="offset points",
        color=BAR,
        fontsize=8,
        va="bottom",
        ha="center",
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _beside(rows: Rows, name: str, label: str, figure: str, floors: Mapping[str, str]) -> list[tuple[str, float, str]]:
    """A row among its floors and its peers, with the words for each."""
    found = [(label, rows[name][figure], OURS)] if name in rows else []
    found += [(words, rows[floor][figure], FLOOR) for floor, words in floors.items() if floor in rows]
    found += [
        (other.removeprefix(PEER_PREFIX).removesuffix(f".{name}"), row[figure], PEER)
        for other, row in rows.items()
        if other.startswith(PEER_PREFIX) and other.endswith(f".{name}")
    ]
    return found


def _calls(plt: Any, rows: Rows) -> Any:
    panels: list[Panel] = []
    for name, title, figure, unit, floors in (
        (
            "remote.1",
            "One call at a time, silo to silo",
            "p50_us",
            "p50, µs: shorter is better",
            {"echo.tcp.1": "TCP echo", "echo.1": "gRPC stream echo", "echo.unary.1": "gRPC unary echo"},
        ),
        (
            "remote.64",
            "64 calls in flight, silo to silo",
            "per_s",
            "calls per second",
            {"echo.tcp.64": "TCP echo", "echo.64": "gRPC stream echo", "echo.unary.64": "gRPC unary echo"},
        ),
        (
            "remote.512",
            "512 calls in flight, silo to silo",
            "per_s",
            "calls per second",
            {"echo.tcp.512": "TCP echo", "echo.512": "gRPC stream echo"},
        ),
        (
            "local.1",
            "One call at a time within a silo",
            "per_s",
            "calls per second",
            {"floor.lock": "await, lock, copies"},
        ),
    ):
        bars = _beside(rows, name, "Silo", figure, floors)
        if name in rows:
            panels.append((title, bars, unit, None))
    return _panels(plt, panels)


def _moves(plt: Any, rows: Rows) -> Any:
    """Pauses of a grain that is called while it moves, and how many move per second."""
    named = [
        ("1 KiB, by the source's clock", "move.1k"),
        ("1 MiB, by the source's clock", "move.1m"),
        ("1 KiB, as its caller sees it", "move.seen"),
    ]
    pauses = [
        (f"{label}, {words}", rows[name][figure] / 1000, colour)
        for label, name in named
        if name in rows
        for figure, words, colour in (("p50_us", "p50", OURS), ("p99_us", "p99", "#7fb2c4"))
    ]
    rates = [
        (label, rows[name]["per_s"], OURS)
        for label, name in (
            ("500 at a time", "move.batch"),
            ("10,000 by one order", "move.10k"),
            ("silo that leaves with 50,000", "drain.50k"),
        )
        if name in rows
    ]
    panels: list[Panel] = []
    if pauses:
        panels.append(("Pause of one grain that moves under calls", pauses, "ms: shorter is better", None))
    if rates:
        wanted = next(bar.bound for bar in BARS if bar.row == "move.10k")
        panels.append(("Grains that move, of 1 KiB each", rates, "grains per second", wanted))
    return _panels(plt, panels)


def _panels(plt: Any, panels: Sequence[Panel]) -> Any:
    """One under the other; None of none."""
    if not panels:
        return None
    heights = [len(bars) + 2.4 for _, bars, _, _ in panels]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(WIDTH_IN, sum(heights) * LINE_IN),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    figure.get_layout_engine().set(h_pad=PAD_IN, w_pad=PAD_IN)
    for one, (title, bars, unit, wanted) in zip(axes[:, 0], panels, strict=True):
        _lying(one, title, bars, unit, wanted=wanted)
    return figure


def _memory(plt: Any, rows: Rows) -> Any:
    bars = [
        (label, rows[name]["bytes_each"], OURS)
        for label, name in (("Silo, 100,000 grains", "memory.100k"), ("Silo, 1,000,000 grains", "memory.1m"))
        if name in rows
    ]
    bars += [
        (name.removeprefix(PEER_PREFIX).replace(".memory.", ", "), row["bytes_each"], PEER)
        for name, row in rows.items()
        if name.startswith(PEER_PREFIX) and row.get("bytes_each") is not None
    ]
    if not bars:
        return None
    wanted = next(bar.bound for bar in BARS if bar.figure == "bytes_each")
    return _panels(plt, [("Resident memory of an idle grain", bars, "bytes each", wanted)])


# --------------------------------------------------------------------------------------------- cost as things grow


def _scale(plt: Any, rows: Rows) -> Any:
    """Processor time of one call, over all processes, as grains and silos become more. Both axes from zero up."""
    curves = [
        ("scale.grains.", "Active grains on one silo", {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}),
        ("scale.silos.", "Silos that are called, each with 64 in flight", {str(each): each for each in (1, 2, 4, 8)}),
    ]
    drawn = [
        (title, [(at, rows[f"{prefix}{name}"]["cpu_s"] * 10) for name, at in points.items() if prefix + name in rows])
        for prefix, title, points in curves
    ]
    drawn = [(title, points) for title, points in drawn if len(points) > 1]
    if not drawn:
        return None
    figure, axes = plt.subplots(1, len(drawn), figsize=(WIDTH_IN, 3.1), layout="constrained", squeeze=False)
    figure.get_layout_engine().set(h_pad=PAD_IN, w_pad=PAD_IN)
    top = max(y for _, points in drawn for _, y in points) * ROOM
    for one, (title, points) in zip(axes[0], drawn, strict=True):
        xs, ys = zip(*points, strict=True)
        one.plot(xs, ys, color=OURS, marker="o", markersize=5, linewidth=1.6)
        one.set_xscale("log", base=10 if max(xs) > 100 else 2)
        one.set_xticks(xs, [f"{x:,}" for x in xs])
        one.minorticks_off()
        one.set_ylim(0, top)
        one.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
        one.set_ylabel("CPU µs of one call, all processes" if one is axes[0][0] else "", color=PALE)
        for x, y in points:
            one.annotate(
                _figure(y), (x, y), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8.5, color=INK
            )
        one.margins(x=0.12)
    return figure
