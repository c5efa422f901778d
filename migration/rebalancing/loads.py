"""What a plan is made from: what each silo has, what it could have, and whether it may give or take."""

from __future__ import annotations

import enum

import msgspec

from silo.directory.addresses import SiloAddress


class Measure(enum.StrEnum):
    """What is evened out. A silo's amount of it is a whole number, and so is a grain's weight in it."""

    COUNT = "count"
    """Activations; each grain weighs one."""
    MEMORY = "memory"
    """Bytes."""
    CPU = "cpu"
    """Thousandths of a processor."""
    WEIGHT = "weight"
    """Whatever the application says that its grains weigh."""


class SiloLoad(msgspec.Struct, frozen=True):
    """What one silo reports of itself for planning."""

    silo: SiloAddress
    name: str
    count: int
    """Its activations, those aside that nobody may move or count (system targets)."""
    memory_bytes: int = 0
    cpu_millis: int = 0
    weight: int = 0
    arriving: int = 0
    """Of the measure: what is on its way here by moves that have begun."""
    leaving: int = 0
    """Of the measure: what is still counted here and on its way elsewhere."""
    capacity: float = 1.0
    """How much it should have, relative to others."""
    movable: int | None = None
    """How many of its activations automatic movers may take; all of them where it does not say."""
    activations_max: int = 0
    """How many it hosts at most; 0 for no bound."""
    no_taking: str = ""
    """Why it is to receive nothing now: it is cordoned, its loop lags, it is full. It may give all the same."""
    silent: str = ""
    """Why nothing is known of it: it is then left out, and neither gives nor takes."""

    def amount(self, measure: Measure) -> int:
        """What it will have when the moves that have begun are over."""
        own = {
            Measure.COUNT: self.count,
            Measure.MEMORY: self.memory_bytes,
            Measure.CPU: self.cpu_millis,
            Measure.WEIGHT: self.weight,
        }[measure]
        return max(0, own + self.arriving - self.leaving)


class LoadSnapshot(msgspec.Struct, frozen=True):
    """All silos' loads at one moment. The version grows with each new snapshot of one planner's life."""

    version: int
    view_version: int
    silos: tuple[SiloLoad, ...]

    def known(self) -> list[SiloLoad]:
        """Those that can be planned for, in order of their addresses: the same order on every silo."""
        return sorted((one for one in self.silos if not one.silent), key=lambda one: one.silo)


class Surroundings(msgspec.Struct, frozen=True):
    """What else is going on in the cluster, as far as it bears on moving grains about."""

    settled_for_s: float
    """Since when the members have been the same."""
    draining: tuple[str, ...] = ()
    """Silos that are leaving, or are being emptied."""
    rolling: str = ""
    """The roll of versions that is under way."""
