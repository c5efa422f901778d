"""What is run, and what it has to show: cases, seeds, bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Final

from benchmarks.halo.fleet import Faults
from benchmarks.halo.run import Outcome, run
from silo.migration.repartitioning.settings import RepartitioningSettings, Strategy

SEEDS: Final = (1, 2, 3, 4, 5)
OFF, PAIRWISE, HUB_FIRST = Strategy.OFF, Strategy.PAIRWISE, Strategy.HUB_FIRST
LOSSY: Final = Faults(delay_s=2.0, lost=0.05, doubled=0.05, gossip_lost=0.3, aborted=0.1)


@dataclass(frozen=True, slots=True)
class Case:
    """One workload under one strategy."""

    name: str
    workload: str
    strategy: Strategy
    silos: int = 10
    minutes: float = 40.0
    words: str = ""
    faults: Faults | None = None
    capacities: tuple[float, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_long: bool = False
    """Whether it is run only with all."""


CASES: Final = (
    Case("halo.off", "halo", OFF, words="placed at random"),
    Case("halo.pairwise", "halo", PAIRWISE),
    Case("halo.hub-first", "halo", HUB_FIRST),
    Case("halo.hub-first.unlimited", "halo", HUB_FIRST, words="no budget", changes={"budget_share": None}),
    Case("halo.hub-first.lossy", "halo", HUB_FIRST, words="5 % of messages lost, 10 % of moves aborted", faults=LOSSY),
    Case("halo.hub-first.unequal", "halo", HUB_FIRST, words="half of the silos twice as large", capacities=(1, 2) * 5),
    Case("halo-1pct.pairwise", "halo-1pct", PAIRWISE, minutes=100, words="games of 80 to 120 min"),
    Case("halo-1pct.hub-first", "halo-1pct", HUB_FIRST, minutes=100, words="games of 80 to 120 min"),
    Case("halo-frozen.hub-first", "halo-frozen", HUB_FIRST, minutes=30, words="games that never end"),
    Case("halo.40.pairwise", "halo", PAIRWISE, silos=40),
    Case("halo.40.hub-first", "halo", HUB_FIRST, silos=40),
    Case("communities.pairwise", "communities", PAIRWISE, minutes=30, is_long=True),
    Case("communities.hub-first", "communities", HUB_FIRST, minutes=30),
    Case("celebrities.pairwise", "celebrities", PAIRWISE, minutes=30, is_long=True),
    Case("celebrities.hub-first", "celebrities", HUB_FIRST, minutes=30),
    Case("random.pairwise", "random", PAIRWISE, minutes=30, is_long=True),
    Case("random.hub-first", "random", HUB_FIRST, minutes=30),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """What the mean of a figure over all seeds is to be, at most."""

    case: str
    figure: str
    bound: float
    beside: str = ""
    """A case whose figure is the bound instead."""


BARS: Final = (
    Bar("halo.hub-first", "remote", 0.02),
    Bar("halo.hub-first", "count_ratio", 1.06),
    Bar("halo.hub-first", "moves_per_min", 0.0, beside="halo.pairwise"),
    Bar("halo.40.hub-first", "remote", 0.06),
    Bar("communities.hub-first", "remote", 0.13),
    Bar("celebrities.hub-first", "load_ratio", 1.3),
    Bar("random.hub-first", "moves_per_min", 0.003),
    Bar("halo-frozen.hub-first", "moves_per_min", 0.0),
)

FIGURES: Final = (
    "remote",
    "moves_per_min",
    "cold_moves",
    "moves_peak",
    "count_ratio",
    "count_ratio_max",
    "load_ratio",
    "aborted",
    "sent",
    "cpu_s",
)


def choose(names: Sequence[str], *, with_long: bool) -> list[Case]:
    """The cases whose names begin so, or all."""
    return [
        case
        for case in CASES
        if (any(case.name.startswith(name) for name in names) if names else with_long or not case.is_long)
    ]


def settings_of(case: Case) -> RepartitioningSettings:
    return RepartitioningSettings(strategy=case.strategy, **case.changes)


def _run_one(case: Case, seed: int, quick: float) -> tuple[str, int, Outcome]:
    outcome = run(
        case.workload,
        settings_of(case),
        seed,
        silos=case.silos,
        minutes=case.minutes * quick,
        faults=case.faults,
        capacities=case.capacities,
    )
    return case.name, seed, outcome


def run_all(cases: Sequence[Case], seeds: Sequence[int], *, jobs: int = 1, quick: float = 1.0) -> dict[str, Any]:
    """All of them, as a document: for each case its figures by seed, their mean, least and most, and the mean curve.

    Args:
        quick: a fraction of the simulated time.
    """
    tasks = [(case, seed) for case in cases for seed in seeds]
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            done = list(pool.map(_run_one, *zip(*tasks, strict=True), [quick] * len(tasks)))
    else:
        done = [_run_one(case, seed, quick) for case, seed in tasks]
    found: dict[str, dict[int, Outcome]] = {}
    for name, seed, outcome in done:
        found.setdefault(name, {})[seed] = outcome
    rows = [_row(case, found[case.name]) for case in cases]
    return {"seeds": list(seeds), "cases": rows, "bars": judge(rows)}


def _row(case: Case, outcomes: Mapping[int, Outcome]) -> dict[str, Any]:
    runs = list(outcomes.values())
    row: dict[str, Any] = {
        "name": case.name,
        "workload": case.workload,
        "strategy": str(case.strategy),
        "silos": case.silos,
        "minutes": case.minutes,
        "words": case.words,
    }
    for figure in FIGURES:
        values = [float(asdict(each)[figure]) for each in runs]
        row[figure] = {"mean": fmean(values), "min": min(values), "max": max(values)}
    row["curve"] = [fmean(points) for points in zip(*(each.curve for each in runs), strict=True)]
    return row


def judge(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each bar whose case was run, with what was found."""
    by_name = {row["name"]: row for row in rows}
    judged: list[dict[str, Any]] = []
    for bar in BARS:
        if bar.case not in by_name or (bar.beside and bar.beside not in by_name):
            continue
        bound = by_name[bar.beside][bar.figure]["mean"] if bar.beside else bar.bound
        value = by_name[bar.case][bar.figure]["mean"]
        judged.append(
            {"case": bar.case, "figure": bar.figure, "bound": bound, "value": value, "passes": value <= bound}
        )
    return judged
