"""The curves and the comparison as a PNG file. They need matplotlib, the extra `plots`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.plots import BAR, DPI, FLOOR, INK, OURS, PALE, PEER, WIDTH_IN

COLOURS: Final = {"off": FLOOR, "pairwise": PEER, "hub-first": OURS}
PANELS: Final = (
    ("halo.", 10, "Halo, 10 silos", 0.02),
    ("halo.", 40, "Halo, 40 silos", 0.06),
    ("communities.", 10, "Communities, 10 silos", 0.13),
)


def draw(told: Mapping[str, Any], path: Path) -> str:
    """Draw the remote share over time; returns why nothing was drawn, or nothing."""
    try:
        plt: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return "no charts, which need matplotlib: pip install 'grain-silo[plots]'"
    importlib.import_module("matplotlib").use("agg")
    panels = [(title, bar, rows) for prefix, silos, title, bar in PANELS if (rows := _of(told, prefix, silos))]
    if not panels:
        return "no charts of these cases"
    with plt.rc_context({"font.size": 9, "text.color": INK, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(WIDTH_IN, 3.0), sharey=True, squeeze=False, layout="constrained"
        )
        for one, (title, bar, rows) in zip(axes[0], panels, strict=True):
            for row in rows:
                curve = row["curve"]
                step = row["minutes"] / len(curve)
                minutes = [step * (number + 0.5) for number in range(len(curve))]
                one.plot(minutes, curve, color=COLOURS[row["strategy"]], label=row["strategy"], linewidth=1.6)
            one.axhline(bar, color=BAR, linewidth=1.0, linestyle=(0, (4, 2)))
            one.set_title(title, loc="left", fontsize=10, fontweight="bold")
            one.set_xlabel("minutes", loc="left", color=PALE)
            one.set_ylim(0, 1)
        axes[0][0].set_ylabel("remote share of messages", color=PALE)
        axes[0][0].legend(frameon=False)
        figure.savefig(path, dpi=DPI)
        plt.close(figure)
    return ""


def _of(told: Mapping[str, Any], prefix: str, silos: int) -> Sequence[Mapping[str, Any]]:
    """The rows of a panel: one for each strategy, as they come."""
    return [
        row
        for row in told["cases"]
        if row["name"].startswith(prefix) and row["silos"] == silos and row["name"].endswith(row["strategy"])
    ]
