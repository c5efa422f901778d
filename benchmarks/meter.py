"""What is measured, and how: closed loops of callers, latencies, CPU time of several processes, and other load."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NS_PER_S = 1_000_000_000
_MACHINE = Path("/proc/stat")
_CPU_CLOCK_OF_PROCESS = 2
"""The clock of a process's CPU time, in the low bits of a Linux clock id; see clock_getcpuclockid(3)."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one repetition did: how long each call took, and all of them together."""

    latencies_ns: list[int]
    wall_s: float


Call = Callable[[], Awaitable[object]]
Work = Callable[[float], Awaitable[Tally]]
"""Does what a row measures for about so many seconds."""


async def closed_loop(calls: Sequence[Call], seconds: float) -> Tally:
    """As many callers as there are calls; each makes its call again as soon as it is answered."""
    latencies: list[int] = []
    clock = time.perf_counter_ns
    begun = clock()
    end = begun + int(seconds * NS_PER_S)

    async def caller(call: Call) -> None:
        while True:
            before = clock()
            await call()
            after = clock()
            latencies.append(after - before)
            if after >= end:
                return

    async with asyncio.TaskGroup() as callers:
        for call in calls:
            callers.create_task(caller(call))
    return Tally(latencies, (clock() - begun) / NS_PER_S)


def looping(calls: Sequence[Call]) -> Work:
    """The work of a row that is a closed loop."""
    return lambda seconds: closed_loop(calls, seconds)


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one repetition, or the medians of several. NaN: not to be had on this platform.

    Args:
        cpu_s: seconds of CPU time per 100,000 calls, of all the processes that the row names.
        noise: how many cores other processes, and other guests of the host, took meanwhile.
    """

    count: int
    per_s: float
    p50_us: float
    p99_us: float
    cpu_s: float
    noise: float


async def sample(work: Work, seconds: float, pids: Sequence[int], all_pids: Sequence[int]) -> Sample:
    """One repetition of the work.

    Args:
        pids: the processes whose CPU time counts.
        all_pids: those that are not other load.
    """
    gc.collect()
    cpu_before, own_before, machine_before = _cpu_s(pids), _cpu_s(all_pids), _machine_s()
    begun = time.perf_counter()
    tally = await work(seconds)
    wall_s = time.perf_counter() - begun
    cpu_s, own_s, machine_s = _cpu_s(pids) - cpu_before, _cpu_s(all_pids) - own_before, _machine_s() - machine_before
    count = len(tally.latencies_ns)
    latencies = sorted(tally.latencies_ns)
    return Sample(
        count,
        count / tally.wall_s,
        percentile(latencies, 0.50) / 1000,
        percentile(latencies, 0.99) / 1000,
        cpu_s / count * 100_000 if count else math.nan,
        max(0.0, machine_s - own_s) / wall_s,
    )


def percentile(ordered: Sequence[int], share: float) -> float:
    """By nearest rank; NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * share) - 1)]


def _cpu_s(pids: Iterable[int]) -> float:
    return sum(_cpu_s_of(pid) for pid in pids)


def _cpu_s_of(pid: int) -> float:
    if pid == os.getpid():
        return time.process_time()
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)
    except OSError:  # no Linux, or the process has ended
        return math.nan


def _machine_s() -> float:
    """CPU seconds that the whole machine has spent, those of other guests of its host included."""
    try:
        line = _MACHINE.read_text().partition("\n")[0]
    except OSError:
        return math.nan
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(text) for text in line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
