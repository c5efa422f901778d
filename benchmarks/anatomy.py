"""Where the time of one remote call goes: `python -m benchmarks.anatomy` measures it by layer, in microseconds.

One silo calls a grain of another by the direct lane, one call at a time. Both note the time at their seams (see
`benchmarks.marked`), by a clock that they share. The layers are means over the calls whose time lies nearest to the
median, so that they add up to it.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import marked
from benchmarks.report import machine, surroundings
from benchmarks.results import FOLDER
from benchmarks.stage import BENCH, GATEWAY, ROOT
from silo import Silo, SiloSettings, with_hint
from silo.application import run_on
from silo.embedded import EmbeddedServer
from silo.testing.processes import ProcessCluster

CLUSTER = "anatomy"
FILE = "anatomy.json"
CALLS, WARM_UP_CALLS = 8_000, 2_000
LANE_TIMEOUT_S = 10.0
NEAR_SHARE = 0.1
"""The share of calls, around the median, that the layers are means of."""
LAYERS: Final = (
    "caller: the call is made, routed and packed",
    "way out: socket, kernel, the other process wakes up",
    "server: the frame is read, the grain found, its turn begun",
    "server: the turn runs, its answer is packed",
    "way back: socket, kernel, the caller's process wakes up",
    "caller: the answer is read, the caller goes on",
)
"""Between the moments of a call, in their order."""


class LaneNotTaken(RuntimeError):
    """The silos do not talk by the direct lane, whose ends are what is marked."""


def next_of(times: Sequence[int], at: int) -> int | None:
    """The first of these times that is not before that one."""
    index = bisect.bisect_left(times, at)
    return times[index] if index < len(times) else None


def layers_of(
    calls: Sequence[tuple[int, int]], here: Mapping[str, Sequence[int]], there: Mapping[str, Sequence[int]]
) -> list[tuple[int, ...]]:
    """How long each layer took, in nanoseconds, of each call that has all its moments.

    Args:
        calls: when each was begun and ended, one after the other.
        here, there: what was marked at the caller and at the grain.
    """
    order = (
        (here, marked.WRITE),
        (there, marked.RECEIVED),
        (there, marked.TURN),
        (there, marked.WRITE),
        (here, marked.RECEIVED),
    )
    found: list[tuple[int, ...]] = []
    for begun, ended in calls:
        moments = [begun]
        for where, what in order:
            moment = next_of(where[what], moments[-1])
            if moment is None or moment > ended:
                break
            moments.append(moment)
        else:
            moments.append(ended)
            found.append(tuple(after - before for before, after in itertools.pairwise(moments)))
    return found


def near_the_median(layers: Sequence[tuple[int, ...]]) -> list[float]:
    """The mean of each layer over the calls that took about as long as the median, in microseconds."""
    ranked = sorted(layers, key=sum)
    middle, half = len(ranked) // 2, max(1, int(len(ranked) * NEAR_SHARE / 2))
    near = ranked[max(0, middle - half) : middle + half]
    return [statistics.mean(each) / 1000 for each in zip(*near, strict=True)]


async def measure() -> dict[str, Any]:
    """The layers of a call. Raises LaneNotTaken."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    async with (
        EmbeddedServer() as server,
        ProcessCluster([marked.__name__], redis=server.url, cluster=CLUSTER, environment={"PYTHONPATH": path}) as there,
    ):
        await there.start(GATEWAY)
        silo = Silo(marked.Marked, settings=SiloSettings(cluster=CLUSTER, redis=server.url, name=BENCH, bootstrap=True))
        await silo.start()
        try:
            return await _measure(silo)
        finally:
            await silo.kill()  # its grains need not move on


async def _measure(silo: Silo) -> dict[str, Any]:
    grain = with_hint(silo.grain(marked.Marked, "1"), GATEWAY)
    if await grain.where() != GATEWAY:
        raise RuntimeError(f"the grain is not on {GATEWAY}")
    try:
        async with asyncio.timeout(LANE_TIMEOUT_S):
            while not marked.MARKS[marked.RECEIVED]:
                await grain.add(1)
    except TimeoutError:
        raise LaneNotTaken(f"after {LANE_TIMEOUT_S:g} s calls still go by gRPC") from None
    clock, calls = time.perf_counter_ns, list[tuple[int, int]]()
    for _ in range(WARM_UP_CALLS):
        await grain.add(1)
    for _ in range(CALLS):
        begun = clock()
        await grain.add(1)
        calls.append((begun, clock()))
    there = await grain.marks()
    layers = layers_of(calls, marked.MARKS, there)
    means = near_the_median(layers)
    return {
        "surroundings": {**surroundings(), **machine()},
        "calls": len(layers),
        "p50_us": round(statistics.median(ended - begun for begun, ended in calls) / 1000, 1),
        "layers": [{"what": what, "us": round(us, 1)} for what, us in zip(LAYERS, means, strict=True)],
    }


def table(folder: Path = FOLDER) -> str:
    """What is kept there, for people."""
    kept: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    total = sum(layer["us"] for layer in kept["layers"])
    lines = ["| layer | µs | share |", "|---|--:|--:|"]
    lines += [f"| {layer['what']} | {layer['us']:.1f} | {layer['us'] / total:.0%} |" for layer in kept["layers"]]
    lines.append(f"| together (p50 of {kept['calls']:,} calls: {kept['p50_us']:.1f}) | {total:.1f} | |")
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.anatomy", description="where the time of one remote call goes, by layer"
    )
    parser.add_argument("--save", nargs="?", type=Path, const=FOLDER, metavar="FOLDER", help="keep it there, too")
    arguments = parser.parse_args(given)

    async def report() -> int:
        text = json.dumps(await measure(), indent=1)
        print(text)
        if arguments.save is not None:
            arguments.save.mkdir(parents=True, exist_ok=True)
            (arguments.save / FILE).write_text(text + "\n", encoding="utf-8")
        return 0

    return run_on(None, report())


if __name__ == "__main__":
    sys.exit(main())
