"""What the rows must reach: multiples of the bare echo on the runtime's own loop and settings.

The echo on asyncio and gRPC as they come, which is slower, is measured beside it and judges nothing.
`python -m benchmarks --check` holds a run to the bars.
"""

from __future__ import annotations

from typing import Final

from benchmarks.harness import Bar
from benchmarks.rows_floors import echo

BARS: Final = (
    Bar("remote.1", "p50_us", "most", 1.6, beside=echo(1)),
    Bar("remote.512", "per_s", "least", 0.15, beside=echo(512)),
)
