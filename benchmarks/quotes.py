"""Figures in the project's pages: each stands in a marked block that is made from `benchmarks/results/latest.json`.

`python -m benchmarks.quotes` writes the blocks anew, and a test holds them to what is kept. A block is what stands
between `<!-- figures: WHAT -->` and `<!-- /figures -->`, where WHAT is `machine`, `bars`, `rows NAME…`, `anatomy`,
`choices`, `brief NAME…` with less of each row, `warm`, or `placement SILOS GRAINS GRAPH EVENT`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import anatomy, choices, locality_warm
from benchmarks.placement import report
from benchmarks.results import FOLDER, Kept, bars_table, load, machine_lines, rows_table

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (ROOT / "README.md", ROOT / "docs" / "performance.md", ROOT / "docs" / "placement.md")
BLOCK: Final = re.compile(r"(<!-- figures: (?P<what>[^>]+?) -->\n).*?(<!-- /figures -->)", re.DOTALL)

_MADE: Final[dict[str, Callable[[Kept, list[str]], str]]] = {
    "machine": lambda kept, _names: f"{machine_lines(kept)}.",
    "bars": lambda kept, _names: bars_table(kept),
    "rows": rows_table,
    "brief": lambda kept, names: rows_table(kept, names, brief=True),
    "anatomy": lambda _kept, _names: anatomy.table(FOLDER),
    "choices": lambda _kept, _names: choices.table(FOLDER),
    "placement": lambda _kept, names: report.quote(FOLDER, *names),
    "warm": lambda _kept, _names: locality_warm.quote(FOLDER),
}


def quoted(text: str, kept: Kept) -> str:
    """The page with its blocks made from what is kept. Raises KeyError for a block or row that there is not."""

    def made(block: re.Match[str]) -> str:
        what, *names = block["what"].split()
        return f"{block[1]}{_MADE[what](kept, names)}\n{block[3]}"

    return BLOCK.sub(made, text)


def main() -> int:
    kept = load()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(quoted(text, kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
