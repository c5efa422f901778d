"""What the rows must reach: multiples of the bare echo on asyncio and gRPC as they come.

The table shows each row beside the echo on the runtime's own loop and settings as well, which is the harder measure.
`python -m benchmarks --check` holds a run to the bars.
"""

from __future__ import annotations

from typing import Final

from benchmarks.harness import Bar
from benchmarks.rows_floors import plain_echo

BARS: Final = (
    Bar("remote.1", "p50_us", "most", 1.6, beside=plain_echo(1)),
    Bar("remote.512", "per_s", "least", 0.15, beside=plain_echo(512)),
)
