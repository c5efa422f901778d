"""A cluster on paper: views, silos and load reports for the tests of placement."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.membership import SiloInfo, SiloRow, SiloStatus, Table, View
from silo.placement.policy import Candidate, PlacementPolicy, PlacementView
from silo.placement.resources import Resources


def address(number: int, incarnation: int = 1) -> SiloAddress:
    return SiloAddress(f"10.0.0.{number}:7000", incarnation)


def row(
    number: int,
    *,
    status: SiloStatus = SiloStatus.ACTIVE,
    kinds: tuple[str, ...] = (),
    meta: Mapping[str, str] | None = None,
    incarnation: int = 1,
) -> SiloRow:
    told = SiloInfo(f"silo-{number}", kinds, dict(meta or {}))
    return SiloRow(address(number, incarnation), told, status, seq=1, seen=1, joined=1)


def view_of(rows: Iterable[SiloRow], version: int = 1) -> View:
    return View(Table("run", version, tuple(rows)))


def cluster(count: int) -> View:
    return view_of(row(number) for number in range(count))


def offer(view: View, rng: random.Random) -> PlacementView:
    ordered = sorted(view.active(), key=lambda one: one.silo)
    return PlacementView(view.version, tuple(Candidate.of(one) for one in ordered), rng)


def grains(count: int, kind: str = "room") -> list[GrainId]:
    return [GrainId.of(kind, f"g{number}") for number in range(count)]


def spread(placed: Counter[SiloAddress], silos: int) -> float:
    """The most grains that one silo has, as a multiple of the mean."""
    return max(placed.values()) / (placed.total() / silos)


class Silo:
    """The PolicyRuntime of one silo, moved along by hand: `tick` is a period, `hear` a load report."""

    def __init__(self, silo: SiloAddress, view: View, rng: random.Random | None = None) -> None:
        self.silo = silo
        self.rng = rng or random.Random(0)
        self.current = view
        self.own_load = 0
        self.reported: dict[SiloAddress, int] = {}
        self.used: dict[SiloAddress, Resources] = {}
        self.on_report: list[Callable[[SiloAddress, int], None]] = []
        self.on_period: list[Callable[[], None]] = []

    def view(self) -> View:
        return self.current

    def self_load(self) -> int:
        return self.own_load

    def peer_load(self, silo: SiloAddress) -> int | None:
        return self.reported.get(silo)

    def resources(self, silo: SiloAddress) -> Resources | None:
        return self.used.get(silo)

    def subscribe_loads(self, on_report: Callable[[SiloAddress, int], None]) -> Callable[[], None]:
        self.on_report.append(on_report)
        return lambda: self.on_report.remove(on_report)

    def every(self, period_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        self.on_period.append(callback)
        return lambda: self.on_period.remove(callback)

    def tick(self) -> None:
        for callback in tuple(self.on_period):
            callback()

    def hear(self, silo: SiloAddress, load: int) -> None:
        self.reported[silo] = load
        for callback in tuple(self.on_report):
            callback(silo, load)

    def is_quiet(self) -> bool:
        """Whether nothing is subscribed any more."""
        return not self.on_report and not self.on_period


class Always:
    """A policy that answers the same, and counts what is done to it."""

    def __init__(self, answer: SiloAddress, name: str = "always") -> None:
        self.answer = answer
        self.name = name
        self.attached = 0
        self.torn_down = 0

    def attach(self, runtime: object) -> Callable[[], None]:
        self.attached += 1
        return self._tear_down

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        return self.answer

    def _tear_down(self) -> None:
        self.torn_down += 1


def place_all(policy: PlacementPolicy, count: int, view: PlacementView, local: SiloAddress) -> Counter[SiloAddress]:
    return Counter(policy.choose(grain, view, local) for grain in grains(count))
