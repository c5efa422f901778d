"""The calls from silo to silo once more, by each other way that they have: what the direct lane brings.

The rows `remote.…` go the best way, which on one host is a unix socket. The callers here are silos of their own in the
same process, which have the lane by TCP alone, or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from benchmarks import rows_floors as floors
from benchmarks.grains import Counter, Mirror
from benchmarks.harness import Prepare, Rows
from benchmarks.meter import Work, looping
from benchmarks.sizes import REMOTE_GRAINS, SIZES
from benchmarks.stage import BENCH, GATEWAY, Stage, grains_on

WAYS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "grpc": ("over gRPC alone", {"direct": False}),
    "tcp": ("by the direct lane over TCP", {"direct_local": False}),
}
"""By the name in a row's: what to call it, and the caller's settings."""


def _calls(way: str, in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        silo = await stage.silo_by(way, **WAYS[way][1])
        counters = await grains_on(silo, Counter, f"by-{way}", REMOTE_GRAINS, GATEWAY)
        return looping([partial(counters[number % REMOTE_GRAINS].add, 1) for number in range(in_flight)])

    return prepare


def _echoed(way: str, size: str, in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        silo = await stage.silo_by(way, **WAYS[way][1])
        mirrors = await grains_on(silo, Mirror, f"by-{way}", REMOTE_GRAINS, GATEWAY)
        body = bytes(SIZES[size])
        return looping([partial(mirrors[number % REMOTE_GRAINS].echo, body) for number in range(in_flight)])

    return prepare


def add_rows(rows: Rows) -> None:
    for way, (name, _) in WAYS.items():
        for in_flight in (1, 64, 512):
            rows.add(
                f"remote.{way}.{in_flight}",
                f"silo to silo {name}, {in_flight} in flight over {REMOTE_GRAINS} grains",
                [BENCH, GATEWAY],
                _calls(way, in_flight),
                beside=floors.echo(in_flight),
            )
        rows.add(
            f"remote.{way}.10k.64",
            f"silo to silo {name}, {SIZES['10k.'] // 1024} KiB echoed, 64 in flight over {REMOTE_GRAINS} grains",
            [BENCH, GATEWAY],
            _echoed(way, "10k.", 64),
            beside=floors.echo(64, "10k."),
        )
