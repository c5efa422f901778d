"""The results as charts, for pages and README: PNG files beside latest.json. Needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plot(kept: Any, folder: Path) -> str:
    return ""
