"""The harness: rows by name, measured in rounds so that what disturbs one disturbs all, and the bars they must pass."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from benchmarks.meter import Sample, Work, sample
from benchmarks.stage import Stage

Prepare = Callable[[Stage], Awaitable[Work]]
Figure = Literal["per_s", "p50_us", "p99_us", "cpu_s"]
WARM_UP_SHARE = 0.5
"""The length of a row's warm-up, in repetitions."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is measured.

    Args:
        what: a line about it.
        processes: all those that take part; their CPU time counts.
        prepare: brings about what the row needs, and gives the work to measure.
        beside: the row that it is compared with.
        also: further rows to be measured with it.
        unit: what is counted.
    """

    name: str
    what: str
    processes: tuple[str, ...]
    prepare: Prepare
    beside: str | None
    unit: str
    also: tuple[str, ...] = ()


class Rows:
    """Rows in the order in which they were added."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def add(
        self,
        name: str,
        what: str,
        processes: Sequence[str],
        prepare: Prepare,
        *,
        beside: str | None = None,
        unit: str = "call",
        also: Sequence[str] = (),
    ) -> None:
        if name in self._rows:
            raise ValueError(f"there are two rows {name!r}")
        self._rows[name] = Row(name, what, tuple(processes), prepare, beside, unit, tuple(also))

    def chosen(self, only: Sequence[str]) -> list[Row]:
        """All rows; or the one of that name, else those whose name begins so, and their floors; raises ValueError where
        there are none."""
        names: set[str] = set()
        for prefix in only or ("",):
            found = {prefix} if prefix in self._rows else {name for name in self._rows if name.startswith(prefix)}
            if not found:
                raise ValueError(f"no row begins with {prefix!r}; there are {', '.join(self._rows)}")
            names |= found
        names |= {other for name in names for other in (self._rows[name].beside, *self._rows[name].also) if other}
        return [row for name, row in self._rows.items() if name in names]


@dataclass(slots=True)
class Measured:
    """A row and its repetitions."""

    row: Row
    samples: list[Sample] = field(default_factory=list[Sample])
    error: str = ""
    """Why it could not be measured."""

    @property
    def median(self) -> Sample:
        """Of each figure over the repetitions."""
        return Sample(
            sum(each.count for each in self.samples),
            *(
                statistics.median(getattr(each, figure.name) for each in self.samples)
                for figure in dataclasses.fields(Sample)
                if figure.name != "count"
            ),
        )

    def times(self, other: Measured, figure: Figure) -> float:
        """How many times the other row's figure: the median over the rounds, in each of which both ran."""
        pairs = zip(self.samples, other.samples, strict=False)
        ratios: list[float] = [getattr(one, figure) / getattr(two, figure) for one, two in pairs]
        return statistics.median(ratios) if ratios else math.nan


async def measure(
    rows: Sequence[Row], stage: Stage, *, rounds: int, seconds: float, progress: Callable[[str], None]
) -> dict[str, Measured]:
    """Prepare all rows and warm them up, then run one repetition of each in every round.

    A row that fails is left out from then on, and says why.
    """
    measured = {row.name: Measured(row) for row in rows}
    works: dict[str, Work] = {}
    for row in rows:
        progress(f"prepare {row.name}")
        try:
            works[row.name] = await row.prepare(stage)
            await works[row.name](seconds * WARM_UP_SHARE)
        except Exception as error:  # a row that fails is a result, and the report shows it
            works.pop(row.name, None)
            measured[row.name].error = described(error)
    for number in range(1, rounds + 1):
        for name in list(works):
            progress(f"round {number} of {rounds}: {name}")
            row = measured[name].row
            try:
                one = await sample(works[name], seconds, stage.pids(row.processes), stage.all_pids)
            except Exception as error:  # as above
                del works[name]
                measured[name].error = described(error)
            else:
                measured[name].samples.append(one)
    return measured


def described(error: BaseException) -> str:
    """In one line; of several that ended a task group, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a row must reach, as a multiple of another row.

    Args:
        beside: that other row.
        at: `least` or `most` so many times the other row's figure.
    """

    row: str
    figure: Figure
    at: Literal["least", "most"]
    bound: float
    beside: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A bar, and what a run had to show for it."""

    bar: Bar
    times: float
    passes: bool

    def __str__(self) -> str:
        bar = self.bar
        verdict = "ok" if self.passes else "FALLS SHORT"
        return (
            f"{bar.row}: {bar.figure} is {self.times:.2f} x that of {bar.beside};"
            f" at {bar.at} {bar.bound:g} x is wanted: {verdict}"
        )


def judge(bars: Sequence[Bar], measured: Mapping[str, Measured], slack: float) -> list[Judgement]:
    """The bars of the rows that were measured.

    Args:
        slack: how many times worse than the bound still passes; for short runs on machines that others use too.
    """
    found: list[Judgement] = []
    for bar in bars:
        one = measured.get(bar.row)
        other = measured.get(bar.beside)
        if one is None or other is None:
            continue
        times = one.times(other, bar.figure)
        passes = times >= bar.bound / slack if bar.at == "least" else times <= bar.bound * slack
        found.append(Judgement(bar, times, passes))
    return found
