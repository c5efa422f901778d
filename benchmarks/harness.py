"""The harness: rows by name, measured in rounds so that what disturbs one disturbs all, and the bars they must pass.

Rows that need processes of their own, or take long, are measured in scenes apart, once each.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from benchmarks.meter import Sample, Work, sample
from benchmarks.peers.process import NotHere
from benchmarks.stage import Stage

Prepare = Callable[[Stage], Awaitable[Work]]
Figure = Literal["per_s", "p50_us", "p99_us", "cpu_s", "failed", "bytes_each"]
MORE_IS_BETTER: Final[frozenset[Figure]] = frozenset({"per_s"})
WARM_UP_SHARE = 0.5
"""The length of a row's warm-up, in repetitions."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Some rows, and the stage that they share.

    Args:
        once: each of its rows is prepared, measured a single time at its own length, and only then the next one is.
        asked: its rows take long, and are measured only with --full or where they are named.
        settings: of all its silos.
        needs: a module that is not there without an extra of the package.
        extra: that extra.
    """

    name: str
    once: bool = False
    asked: bool = False
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    needs: str = ""
    extra: str = ""

    @property
    def lacks(self) -> str:
        """Why it cannot be measured here, and what to do about it; empty where it can."""
        if not self.needs:
            return ""
        try:
            if importlib.util.find_spec(self.needs) is not None:
                return ""
        except ModuleNotFoundError:  # not even the package that would hold it
            pass
        return f"needs {self.needs}: pip install 'grain-silo[{self.extra}]'"


MAIN: Final = Scene("main")
"""The rows that are measured together, in rounds."""
PEERS: Final = Scene("main")
"""Those of peers: in the same rounds, so that ratios are of one run, but not in a quick one."""


def long_scene(name: str, **settings: object) -> Scene:
    """A scene of rows that take long, each measured once; the settings by their names with __ for the dot."""
    return Scene(name, once=True, asked=True, settings={key.replace("__", "."): it for key, it in settings.items()})


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
        scene: with which rows, and how often, it is measured.
    """

    name: str
    what: str
    processes: tuple[str, ...]
    prepare: Prepare
    beside: str | None
    unit: str
    also: tuple[str, ...] = ()
    scene: Scene = MAIN


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
        scene: Scene = MAIN,
    ) -> None:
        if name in self._rows:
            raise ValueError(f"there are two rows {name!r}")
        self._rows[name] = Row(name, what, tuple(processes), prepare, beside, unit, tuple(also), scene)

    def all(self) -> list[Row]:
        return list(self._rows.values())

    def chosen(self, only: Sequence[str], *, full: bool = False, quick: bool = False) -> list[Row]:
        """The rows that do not take long; or the one of that name, else those whose name begins so, and their floors.

        Args:
            full: those that take long, too.
            quick: of the main scene alone.

        Raises:
            ValueError: there is no such row.
        """
        names: set[str] = set()
        for prefix in only:
            found = {prefix} if prefix in self._rows else {name for name in self._rows if name.startswith(prefix)}
            if not found:
                raise ValueError(f"no row begins with {prefix!r}; there are {', '.join(self._rows)}")
            names |= found
        if not only:
            names = {row.name for row in self._rows.values() if full or not row.scene.asked}
            if quick:
                names = {name for name in names if self._rows[name].scene is MAIN}
        wanted = list(names)
        while wanted:  # what a row is compared with may be compared with another itself
            row = self._rows[wanted.pop()]
            others = {other for other in (row.beside, *row.also) if other} - names
            names |= others
            wanted += others
        return [row for name, row in self._rows.items() if name in names]


@dataclass(slots=True)
class Measured:
    """A row and its repetitions."""

    row: Row
    samples: list[Sample] = field(default_factory=list[Sample])
    error: str = ""
    """Why it could not be measured."""
    skipped: str = ""
    """Why it cannot be measured here, which is no failure: what to install."""

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
        return self.times_of(figure, other, figure)

    def times_of(self, figure: Figure, other: Measured, others: Figure) -> float:
        """Likewise, with a figure of the other row that may be another one. Rows of different scenes shared no round:
        then it is the ratio of their medians."""
        if not self.samples or not other.samples:
            return math.nan
        if self.row.scene.name != other.row.scene.name:
            return _ratio(getattr(self.median, figure), getattr(other.median, others))
        pairs = zip(self.samples, other.samples, strict=False)
        return statistics.median(_ratio(getattr(one, figure), getattr(two, others)) for one, two in pairs)


def _ratio(one: float, two: float) -> float:
    return one / two if two else math.nan


async def measure(
    rows: Sequence[Row], *, rounds: int, seconds: float, progress: Callable[[str], None]
) -> dict[str, Measured]:
    """Measure the rows, scene by scene.

    A row that fails is left out from then on, and says why; so do those of a scene that cannot be set.
    """
    measured = {row.name: Measured(row) for row in rows}
    for name in dict.fromkeys(row.scene.name for row in rows):
        theirs = [row for row in rows if row.scene.name == name]
        scene = theirs[0].scene
        if scene.lacks:
            for row in theirs:
                measured[row.name].skipped = scene.lacks
            continue
        progress(f"start the processes of {name}")
        try:
            async with Stage(sorted({each for row in theirs for each in row.processes}), scene.settings) as stage:
                if scene.once:
                    await _measure_once(theirs, stage, measured, seconds, progress)
                else:
                    await _measure_in_rounds(theirs, stage, measured, rounds, seconds, progress)
        except Exception as error:  # a scene that fails is a result, as a row is
            unheard = [each for row in theirs if not ((each := measured[row.name]).error or each.samples)]
            if not unheard:
                raise
            for each in unheard:
                each.error = described(error)
    return measured


async def _measure_once(
    rows: Sequence[Row],
    stage: Stage,
    measured: Mapping[str, Measured],
    seconds: float,
    progress: Callable[[str], None],
) -> None:
    for row in rows:
        progress(f"{row.name}: {row.what}")
        try:
            work = await row.prepare(stage)
            one = await sample(work, seconds, stage.pids(row.processes), stage.all_pids)
        except Exception as error:  # a row that fails is a result, and the report shows it
            measured[row.name].error = described(error)
        else:
            measured[row.name].samples.append(one)


async def _measure_in_rounds(
    rows: Sequence[Row],
    stage: Stage,
    measured: Mapping[str, Measured],
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
) -> None:
    """Prepare all rows and warm them up, then run one repetition of each in every round."""
    works: dict[str, Work] = {}
    for row in rows:
        progress(f"prepare {row.name}")
        try:
            works[row.name] = await row.prepare(stage)
            await works[row.name](seconds * WARM_UP_SHARE)
        except NotHere as error:
            measured[row.name].skipped = str(error)
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


def described(error: BaseException) -> str:
    """In one line; of several that ended a task group, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a row must reach: a figure, or a multiple of another row's.

    Args:
        at: `least` or `most` so much, or so many times the other row's figure.
        beside: that other row; of several, the best of those that were measured. None: the bound is the figure itself.
        of: the other row's figure, where it is another one.
        goal: what is hoped for; it is reported, and fails nothing.
    """

    row: str
    figure: Figure
    at: Literal["least", "most"]
    bound: float
    beside: str | tuple[str, ...] | None = None
    of: Figure | None = None
    goal: float | None = None

    @property
    def others(self) -> tuple[str, ...]:
        """The rows that it may be held against."""
        if self.beside is None:
            return ()
        return (self.beside,) if isinstance(self.beside, str) else self.beside

    def is_met(self, value: float, bound: float) -> bool:
        return value >= bound if self.at == "least" else value <= bound


@dataclass(frozen=True, slots=True)
class Judgement:
    """A bar, and what a run had to show for it.

    Args:
        value: the figure, or how many times the other row's it is.
        beside: the row that it was held against; empty where the bound is the figure itself, or none was measured.
        passes: None where nothing was measured that it could be held against.
    """

    bar: Bar
    value: float
    beside: str
    passes: bool | None

    @property
    def reaches_goal(self) -> bool | None:
        """None where there is no goal, or it was not judged."""
        if self.bar.goal is None or self.passes is None:
            return None
        return self.bar.is_met(self.value, self.bar.goal)

    def __str__(self) -> str:
        bar = self.bar
        if self.passes is None:
            return f"{bar.row}: {bar.figure} is not judged, since none of {', '.join(bar.others)} was measured"
        verdict = "ok" if self.passes else "FALLS SHORT"
        goal = f" (goal {bar.goal:g} x: {'reached' if self.reaches_goal else 'not reached'})" if bar.goal else ""
        if bar.beside is None:
            return f"{bar.row}: {bar.figure} is {self.value:,.0f}; at {bar.at} {bar.bound:,g} is wanted: {verdict}"
        other = self.beside if bar.of in (None, bar.figure) else f"{self.beside}'s {bar.of}"
        return (
            f"{bar.row}: {bar.figure} is {self.value:.2f} x that of {other};"
            f" at {bar.at} {bar.bound:g} x is wanted: {verdict}{goal}"
        )


def judge(bars: Sequence[Bar], measured: Mapping[str, Measured], slack: float) -> list[Judgement]:
    """The bars of the rows that were measured.

    Args:
        slack: how many times worse than the bound still passes; for short runs on machines that others use too.
    """
    found: list[Judgement] = []
    for bar in bars:
        one = measured.get(bar.row)
        if one is None or one.skipped:
            continue
        bound = bar.bound / slack if bar.at == "least" else bar.bound * slack
        if bar.beside is None:
            value = getattr(one.median, bar.figure) if one.samples else math.nan
            found.append(Judgement(bar, value, "", bar.is_met(value, bound)))
            continue
        of = bar.of or bar.figure
        other = _best([measured[name] for name in bar.others if name in measured], of)
        if other is None:
            found.append(Judgement(bar, math.nan, "", None))
            continue
        value = one.times_of(bar.figure, other, of)
        found.append(Judgement(bar, value, other.row.name, bar.is_met(value, bound)))
    return found


def _best(rows: Sequence[Measured], figure: Figure) -> Measured | None:
    """The row with the best figure; None where none of them was measured."""
    ranked = sorted((row for row in rows if row.samples), key=lambda row: getattr(row.median, figure))
    if not ranked:
        return None
    return ranked[-1 if figure in MORE_IS_BETTER else 0]
