"""What the rows must reach; `python -m benchmarks --check` holds a run to it.

Floors are bare echoes on the runtime's own loop and settings; the one on asyncio and gRPC as they come is slower, is
measured too, and judges nothing. Beside peers the best of those counts that were measured in the run: none are
installed with the package, and without them their bars are left open. Bounds must be reached; goals are reported.
"""

from __future__ import annotations

from typing import Final

from benchmarks.harness import Bar
from benchmarks.rows_floors import LOCK, echo

KIB: Final = 1024
NIGRAINS, CASTY = "nigrains", "casty"


def peers(row: str, *names: str) -> tuple[str, ...]:
    """That row of each of these peers."""
    return tuple(f"peer.{name}.{row}" for name in names)


FLOORS: Final = (
    Bar("local.1", "per_s", "least", 0.5, beside=LOCK),
    Bar("remote.1", "p50_us", "most", 3.0, beside=("echo.tcp.1",)),
    Bar("remote.1", "p50_us", "most", 1.35, beside=echo(1)),
    Bar("remote.grpc.1", "p50_us", "most", 1.35, beside=echo(1)),
    Bar("remote.512", "per_s", "least", 0.3, beside=echo(512), goal=0.5),
    Bar("remote.grpc.10k.64", "per_s", "least", 0.6, beside=echo(64, "10k.")),
    Bar("move.1k", "p50_us", "most", 6.0, beside=echo(1)),
    Bar("move.1k", "p99_us", "most", 25.0, beside=echo(1), of="p50_us"),
    Bar("telemetry.off", "p50_us", "most", 0.02, beside="local.1"),
    Bar("telemetry.on.1", "p50_us", "most", 1.25, beside="telemetry.none.1"),
)
"""Beside floors, or the same without something."""
FIGURES: Final = (
    Bar("activate.10k", "per_s", "least", 10_000),
    Bar("move.10k", "per_s", "least", 3_000),
    Bar("drain.1k", "failed", "most", 0),
    Bar("memory.100k", "bytes_each", "most", 1.0 * KIB),
    Bar("memory.1m", "bytes_each", "most", 1.0 * KIB),
)
"""By themselves."""
PEERS: Final = (
    Bar("local.1", "per_s", "least", 1.2, beside=peers("local.1", NIGRAINS)),
    Bar("local.64", "per_s", "least", 1.2, beside=peers("local.64", NIGRAINS)),
    Bar("remote.1", "p50_us", "most", 0.5, beside=peers("remote.1", CASTY)),
    Bar("remote.64", "per_s", "least", 2.0, beside=peers("remote.64", CASTY), goal=3.0),
    Bar("remote.512", "per_s", "least", 2.0, beside=peers("remote.512", CASTY), goal=2.5),
    Bar("remote.10k.64", "per_s", "least", 2.0, beside=peers("remote.10k.64", CASTY)),
    Bar(
        "remote.1m.16",
        "per_s",
        "least",
        1.0,
        beside=peers("remote.1m.16", "pyorleans", "xoscar", CASTY, "ray", "thespian"),
        goal=1.2,
    ),
    Bar("fan.10", "per_s", "least", 3.0, beside=peers("fan.10", CASTY)),
    Bar("ring.3", "per_s", "least", 2.0, beside=peers("ring.3", CASTY)),
    Bar("activate.10k", "per_s", "least", 1.3, beside=peers("activate.remote", CASTY)),
)
BARS: Final = (*FLOORS, *FIGURES, *PEERS)
