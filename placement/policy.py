"""The seam of placement: what a policy is asked, what it may use, and what it must answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import GrainUnplaceable
from silo.directory.membership import SiloRow, View


class AnswerOutsideView(GrainUnplaceable):
    """A policy answered with something that it was not offered: a mistake in the policy, never papered over."""

    def __init__(self, message: str, policy: str = "") -> None:
        super().__init__(message)
        self.policy = policy


CAPACITY = "capacity"
"""The metadata by which a silo says how much it should carry, relative to others, such as `capacity=2`."""
CAPACITY_MAX = 1000.0


def capacity_in(meta: Mapping[str, str]) -> float:
    """The capacity that the metadata states; 1 where it states none, or one that is none."""
    try:
        capacity = float(meta.get(CAPACITY, 1.0))
    except ValueError:
        return 1.0
    return capacity if 1 / CAPACITY_MAX <= capacity <= CAPACITY_MAX else 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A silo that may host the grain in question."""

    silo: SiloAddress
    name: str
    """Stays the same when the silo is restarted, unlike the address."""
    meta: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    app_version: str = ""
    capacity: float = 1.0
    """How much it should carry, relative to others: its metadata `capacity`."""

    @classmethod
    def of(cls, row: SiloRow) -> Candidate:
        told = row.info
        return cls(row.silo, told.name, told.meta, told.app_version, capacity_in(told.meta))

    def __str__(self) -> str:
        return f"{self.name} ({self.silo})"


class PlacementView(msgspec.Struct, frozen=True, eq=False):
    """What one decision is made from: the candidates, in order of address and never none, and the random source."""

    version: int
    candidates: tuple[Candidate, ...]
    rng: random.Random

    def __contains__(self, silo: object) -> bool:
        return silo in [candidate.silo for candidate in self.candidates]


class PolicyRuntime(Protocol):
    """What an attached policy may use of its silo. Loads are hints: old ones cost balance, never correctness.

    A load is the number of activations that a silo hosts; the silo's own and its peers' are counted the same way.
    """

    @property
    def silo(self) -> SiloAddress: ...

    @property
    def rng(self) -> random.Random: ...

    def view(self) -> View:
        """The newest view of the cluster."""
        ...

    def self_load(self) -> int:
        """How many activations this silo hosts now."""
        ...

    def peer_load(self, silo: SiloAddress) -> int | None:
        """The last load that the silo reported; None where it never did."""
        ...

    def subscribe_loads(self, on_report: Callable[[SiloAddress, int], None]) -> Callable[[], None]:
        """Call back with each load report as it arrives; returns what ends the subscription."""
        ...

    def every(self, period_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on the event loop once per period; returns what ends it."""
        ...


class PlacementPolicy(Protocol):
    """Decides where a new activation lands. It never moves one that exists.

    `choose` is synchronous, does no I/O, and is the same function of the view, the load and the random source each
    time. It must work before `attach` was called, and after a failed one. One policy object may serve several silos
    of one process: what it keeps, it keeps per `local`.
    """

    @property
    def name(self) -> str:
        """How decisions, counters and log lines call it."""
        ...

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        """One of the view's candidates. `local` is the silo that decides; it need not be among them."""
        ...


@runtime_checkable
class AttachablePolicy(Protocol):
    """A policy that keeps something of its own up to date: it is attached once per silo, at start."""

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None] | None:
        """Begin; returns the teardown, which is run once when the silo stops."""
        ...


@runtime_checkable
class ScoringPolicy(Protocol):
    """A policy that can say how it rates the candidates, for explanations. The best score depends on the policy."""

    def scores(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> Mapping[SiloAddress, float]:
        """A score per candidate as `choose` would see it now; changes nothing."""
        ...


class PlacementFilter(Protocol):
    """Narrows the candidates before the policy is asked."""

    @property
    def advisory(self) -> bool:
        """An advisory filter gives way where it would leave no candidate, and to a caller's hint."""
        ...

    def exclude(
        self, grain: GrainId, candidates: Sequence[Candidate], here: Candidate | None
    ) -> Mapping[SiloAddress, str]:
        """Which candidates fall out, each with the reason. `here` is the deciding silo, where the view knows it."""
        ...
