"""What telemetry costs: the checks of a call where it is off, and all of it where it is on."""

from __future__ import annotations

import dis
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from benchmarks.grains import Counter
from benchmarks.harness import Prepare, Rows, Scene
from benchmarks.meter import NS_PER_S, Tally, Work, looping
from benchmarks.stage import BENCH, GATEWAY, OBSERVED, REDIS, Stage, grains_on

LOCAL = "local.1"
CHECKS_AT_A_TIME = 1_000
NAMES = frozenset({"telemetry", "_telemetry", "at_once"})
"""Where parts keep what they report to; and what runs calls at once, which is only there where nothing is reported."""
GRAINS = 64
SAMPLED = 0.1
"""How much of the traces is sampled in the rows that do not sample all."""


class _Part:
    """As parts of the runtime have it: what they report to, which is nothing."""

    def __init__(self) -> None:
        self.telemetry: object | None = None


class Checks:
    """Counts how often the code that runs asks whether anything is to be told: lines that read one of those names."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: dict[CodeType, frozenset[int]] = {}

    async def of(self, call: Callable[[], Awaitable[object]]) -> int:
        """How many of them one call makes."""
        before, self.count = sys.gettrace(), 0
        sys.settrace(self._entered)
        try:
            await call()
        finally:
            sys.settrace(before)
        return self.count

    def _entered(self, frame: FrameType, event: str, _argument: Any) -> Any:
        del event
        return self._stepped if self._asking(frame.f_code) else None

    def _stepped(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and frame.f_lineno in self._asking(frame.f_code):
            self.count += 1
        return self._stepped

    def _asking(self, code: CodeType) -> frozenset[int]:
        """The lines of this code that read one of the names."""
        found = self._lines.get(code)
        if found is None:
            found = self._lines[code] = frozenset(
                step.positions.lineno
                for step in dis.get_instructions(code)
                if step.opname == "LOAD_ATTR" and step.argval in NAMES and step.positions and step.positions.lineno
            )
        return found


async def _checks(stage: Stage) -> Work:
    """The checks that one local call makes, by themselves: a repetition takes as long as one call's."""
    silo = await stage.silo()
    (counter,) = await grains_on(silo, Counter, "checked", 1, BENCH)
    await counter.add(1)
    count = await Checks().of(partial(counter.add, 1))
    if not count:
        raise RuntimeError("a local call is said to check for telemetry nowhere, which is not so")
    part = _Part()
    return lambda seconds: _timed(part, count, seconds)


async def _timed(part: _Part, checks: int, seconds: float) -> Tally:
    clock, latencies, repeated = time.perf_counter_ns, list[int](), range(CHECKS_AT_A_TIME)
    begun = clock()
    end = begun + int(seconds * NS_PER_S)
    while (before := clock()) < end:
        for _ in repeated:
            pass
        between = clock()
        for _ in repeated:
            if part.telemetry is not None:
                raise AssertionError
        spent = clock() - between - (between - before)
        latencies.append(max(0, round(spent * checks / CHECKS_AT_A_TIME)))
    return Tally(latencies, (clock() - begun) / NS_PER_S)


def _remote(in_flight: int, ratio: float | None = None) -> Prepare:
    """Silo to silo in one cluster, both with telemetry on, and so much of the traces sampled; or both without."""

    async def prepare(stage: Stage) -> Work:
        silo, to = (await stage.silo(), GATEWAY) if ratio is None else (await stage.observed_silo(ratio), OBSERVED)
        counters = await grains_on(silo, Counter, f"told-{to}-{ratio}", GRAINS, to)
        return looping([partial(counters[number % GRAINS].add, 1) for number in range(in_flight)])

    return prepare


def add_rows(rows: Rows) -> None:
    rows.add(
        "telemetry.off",
        "what a local call checks where there is none, by itself",
        [BENCH, REDIS],
        _checks,
        beside=LOCAL,
    )
    apart = Scene("telemetry", needs="opentelemetry.sdk", extra="otel")
    for in_flight in (1, 64):
        rows.add(
            f"telemetry.none.{in_flight}",
            f"silo to silo without telemetry, {in_flight} in flight over {GRAINS} grains",
            [BENCH, GATEWAY],
            _remote(in_flight),
            scene=apart,
        )
        rows.add(
            f"telemetry.on.{in_flight}",
            f"the same with traces and metrics on at both ends, exported over OTLP, {in_flight} in flight",
            [BENCH, OBSERVED],
            _remote(in_flight, 1.0),
            beside=f"telemetry.none.{in_flight}",
            scene=apart,
        )
        rows.add(
            f"telemetry.sampled.{in_flight}",
            f"the same with one trace of {round(1 / SAMPLED)} sampled (OTEL_TRACES_SAMPLER=parentbased_traceidratio)",
            [BENCH, OBSERVED],
            _remote(in_flight, SAMPLED),
            beside=f"telemetry.none.{in_flight}",
            scene=apart,
        )
