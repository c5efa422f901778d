"""What the rows must reach. `python -m benchmarks --check` holds a run to it."""

from __future__ import annotations

from typing import Final

from benchmarks.harness import Bar

BARS: Final = (
    Bar("remote.1", "p50_us", "most", 1.6),
    Bar("remote.512", "per_s", "least", 0.15),
)
