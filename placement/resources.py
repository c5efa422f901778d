"""Placement by what silos have left: processor, memory, the lag of their loops, and the number of their activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import InvalidSettings
from silo.placement.draws import Draws
from silo.placement.load import REFRESH_S, AttachedLoads, LoadView
from silo.placement.policy import Candidate, PlacementView, PolicyRuntime

LAG_FULL_S = 0.5
"""A loop that lags by this much counts as fully used."""


class Resources(msgspec.Struct, frozen=True):
    """What a silo says of what it uses, as fractions of what it has, from 0 to 1; None for what it does not say."""

    cpu: float | None = None
    memory: float | None = None
    lag_s: float | None = None
    """How late its event loop wakes."""


@runtime_checkable
class ResourceRuntime(Protocol):
    """A policy's runtime that knows more of the silos than how many activations they host."""

    def resources(self, silo: SiloAddress) -> Resources | None:
        """The last report of the silo; None where it never reported."""
        ...


class ResourceWeights(msgspec.Struct, frozen=True):
    """How much each resource counts. Only their proportions matter."""

    cpu: float = 40.0
    memory: float = 25.0
    lag: float = 15.0
    count: float = 20.0

    def __post_init__(self) -> None:
        values = msgspec.structs.astuple(self)
        if not all(value >= 0 for value in values) or not sum(values) > 0:
            raise InvalidSettings(f"the weights of resources are from 0 on, and not all of them 0: {self}")


class ResourceOptimizedPlacement:
    """The one with the most left of a few candidates drawn at random, in proportion to their capacities.

    What a silo uses is taken to grow with each activation that was placed since its report, as its average activation
    has it: without that, all silos would pick the same target until its next report. What silos do not report is left
    out for all candidates of a decision; where they report nothing, this is `activation-count`.

    Args:
        weights: how much each resource counts.
        choose_out_of: how many are drawn.
        local_margin: stay local where that is at most so much worse, as a fraction of a full silo.
        refresh_s: how often the own load is read, and how often peers are expected to report theirs, in seconds.
    """

    name = "resource-optimized"

    def __init__(
        self,
        *,
        weights: ResourceWeights | None = None,
        choose_out_of: int = 2,
        local_margin: float = 0.05,
        refresh_s: float = REFRESH_S,
    ) -> None:
        if choose_out_of < 1:
            raise InvalidSettings(f"choose_out_of is at least 1, not {choose_out_of}")
        if not 0 <= local_margin <= 1:
            raise InvalidSettings(f"local_margin is a fraction from 0 to 1, not {local_margin}")
        if not refresh_s > 0:
            raise InvalidSettings(f"refresh_s is above 0 seconds, not {refresh_s}")
        self._weights = weights or ResourceWeights()
        self._choose_out_of = choose_out_of
        self._local_margin = local_margin
        self._loads = AttachedLoads(refresh_s)
        self._runtimes: dict[SiloAddress, ResourceRuntime] = {}
        self._draws = Draws()

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None]:
        end = self._loads.attach(runtime)
        if isinstance(runtime, ResourceRuntime):
            self._runtimes[runtime.silo] = runtime

        def teardown() -> None:
            self._runtimes.pop(runtime.silo, None)
            end()

        return teardown

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        load = self._loads.at(local)
        if load is None:
            return self._draws.one(view)
        drawn = self._draws.some(view, self._choose_out_of)
        here = next((one for one in view.candidates if one.silo == local), None) if self._local_margin else None
        offered = drawn if here is None or here in drawn else [*drawn, here]
        used = self._used(offered, view, load, local)
        chosen = min(drawn, key=lambda one: used[one.silo]).silo
        if here is not None and used[here.silo] <= used[chosen] + self._local_margin:
            chosen = here.silo
        load.placed(chosen)
        return chosen

    def scores(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> Mapping[SiloAddress, float]:
        """How much of it is used, from 0 to 1 and beyond; the lower of those drawn wins."""
        load = self._loads.at(local)
        return {} if load is None else self._used(view.candidates, view, load, local)

    def _used(
        self, offered: Sequence[Candidate], view: PlacementView, load: LoadView, local: SiloAddress | None
    ) -> dict[SiloAddress, float]:
        runtime = self._runtimes.get(local) if local is not None else None
        told = {one.silo: (runtime.resources(one.silo) if runtime else None) or Resources() for one in offered}
        fullest = max(load.estimate(one.silo) / one.capacity for one in view.candidates) or 1.0
        growth = {one.silo: _growth(load, one.silo) for one in offered}
        terms: list[tuple[float, dict[SiloAddress, float]]] = [
            (self._weights.count, {one.silo: load.estimate(one.silo) / one.capacity / fullest for one in offered})
        ]
        for weight, values in (
            (self._weights.cpu, {silo: one.cpu for silo, one in told.items()}),
            (self._weights.memory, {silo: one.memory for silo, one in told.items()}),
            (self._weights.lag, {silo: _share_of_lag(one.lag_s) for silo, one in told.items()}),
        ):
            known = {silo: value * growth[silo] for silo, value in values.items() if value is not None}
            if len(known) == len(offered):
                terms.append((weight, known))
        whole = sum(weight for weight, _ in terms) or 1.0
        return {one.silo: sum(weight * term[one.silo] for weight, term in terms) / whole for one in offered}


def _growth(load: LoadView, silo: SiloAddress) -> float:
    """By how much a silo's use is taken to have grown since its report, with the activations placed there."""
    pending = load.pending(silo)
    return 1.0 + pending / max(1.0, load.estimate(silo) - pending)


def _share_of_lag(lag_s: float | None) -> float | None:
    return None if lag_s is None else min(1.0, lag_s / LAG_FULL_S)
