"""What is measured, and how: closed loops of callers, latencies, CPU time of several processes, and other load."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import resource
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
    """What one repetition did: how long each call took, and all of them together.

    Args:
        count: what was done, where that is not one for each latency.
        failed: calls that failed, where such are counted and do not end the row.
        bytes_each: what each of them takes in memory, where that is what was measured.
        cpu_s: seconds of CPU time of the row's processes, where the work knows better: they may become more meanwhile.
    """

    latencies_ns: list[int]
    wall_s: float
    count: int | None = None
    failed: int | None = None
    bytes_each: float | None = None
    cpu_s: float | None = None


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
    """The figures of one repetition, or the medians of several. NaN: not to be had on this platform, or of this row.

    Args:
        cpu_s: seconds of CPU time per 100,000 calls, of all the processes that the row names.
        noise: how many cores other processes, and other guests of the host, took meanwhile.
        wall_s: how long it took.
        failed: how many calls failed, of a row in which calls may.
        bytes_each: of memory, of a row that measures that.
    """

    count: int
    per_s: float
    p50_us: float
    p99_us: float
    cpu_s: float
    noise: float
    wall_s: float = math.nan
    failed: float = math.nan
    bytes_each: float = math.nan


async def sample(work: Work, seconds: float, pids: Sequence[int], all_pids: Sequence[int]) -> Sample:
    """One repetition of the work.

    Args:
        pids: the processes whose CPU time counts.
        all_pids: those that are not other load.
    """
    gc.collect()
    spent, own = Spent(pids), Spent(all_pids)
    machine_before = _machine_s()
    begun = time.perf_counter()
    tally = await work(seconds)
    wall_s = time.perf_counter() - begun
    cpu_s, own_s, machine_s = spent.cpu_s(), own.cpu_s(), _machine_s() - machine_before
    if tally.cpu_s is not None:
        cpu_s = tally.cpu_s
    count = len(tally.latencies_ns) if tally.count is None else tally.count
    latencies = sorted(tally.latencies_ns)
    return Sample(
        count,
        count / tally.wall_s,
        percentile(latencies, 0.50) / 1000,
        percentile(latencies, 0.99) / 1000,
        cpu_s / count * 100_000 if count else math.nan,
        max(0.0, machine_s - own_s) / wall_s,
        tally.wall_s,
        math.nan if tally.failed is None else float(tally.failed),
        math.nan if tally.bytes_each is None else tally.bytes_each,
    )


class Spent:
    """The CPU time that processes spend from now on, those of them that end meanwhile included.

    What has ended is known by what this process has reaped in the time; so nothing else of its own may end in it.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._before = {pid: _cpu_s_of(pid) for pid in pids}
        self._reaped_before = _reaped_s()

    def cpu_s(self) -> float:
        """Seconds; NaN where the platform does not tell, or one had ended before."""
        total, some_ended = 0.0, False
        for pid, before in self._before.items():
            after = _cpu_s_of(pid)
            some_ended |= math.isnan(after)
            total += (0.0 if math.isnan(after) else after) - before
        return total + (_reaped_s() - self._reaped_before if some_ended else 0.0)


def _reaped_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def percentile(ordered: Sequence[int], share: float) -> float:
    """By nearest rank; NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * share) - 1)]


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
