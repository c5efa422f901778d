"""The policies that come with the runtime.

* `random` is the default: no state, no surprise, the same spread whatever silo the calls enter through.
* `prefer-local` saves a hop where the calls of one grain all enter at one silo. Where calls merely happen to enter
  unevenly (a rolling deployment, a bad health check), it gathers the grains where the calls enter; a cap holds that
  down.
* `consistent-hash` gives each grain the same silo, whoever decides: for where clients or caches use the same rule.
* `activation-count` takes the less loaded of two silos drawn at random: nearly even, without herding on old load
  reports.
* `resource-optimized` (`silo.placement.resources`) looks at processor, memory and lag as well.

Where silos state a capacity (the metadata `capacity`), each of them gives a silo its part by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from silo.directory.addresses import GrainId, SiloAddress, stable_hash
from silo.directory.errors import InvalidSettings
from silo.placement.draws import Draws
from silo.placement.load import REFRESH_S, AttachedLoads, LoadView
from silo.placement.policy import Candidate, PlacementView, PolicyRuntime

LOCAL_HEADROOM = 2
"""Activations that a cap relative to the mean allows on top: a mean near zero is no reason to send grains away."""


class RandomPlacement:
    """Any candidate, each as likely as the others."""

    name = "random"

    def __init__(self) -> None:
        self._draws = Draws()

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        return self._draws.one(view)


class ActivationCountPlacement:
    """The least loaded of a few candidates drawn at random; among equals, whichever was drawn first.

    Not attached to a silo, it knows no load, keeps nothing, and draws exactly as `random` does.

    Args:
        choose_out_of: how many are drawn. Two is nearly as even as more, and herds the least on old reports.
        refresh_s: how often the own load is read, and how often peers are expected to report theirs, in seconds.
    """

    name = "activation-count"

    def __init__(self, *, choose_out_of: int = 2, refresh_s: float = REFRESH_S) -> None:
        if choose_out_of < 1:
            raise InvalidSettings(f"choose_out_of is at least 1, not {choose_out_of}")
        if not refresh_s > 0:
            raise InvalidSettings(f"refresh_s is above 0 seconds, not {refresh_s}")
        self._choose_out_of = choose_out_of
        self._loads = AttachedLoads(refresh_s)
        self._draws = Draws()

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None]:
        return self._loads.attach(runtime)

    def load(self, local: SiloAddress | None) -> LoadView | None:
        """The load as that silo sees it; None where the policy is not attached there."""
        return self._loads.at(local)

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        load = self._loads.at(local)
        if load is None:
            return self._draws.one(view)
        drawn = self._draws.some(view, self._choose_out_of)
        if self._draws.are_even(view):
            chosen = min((candidate.silo for candidate in drawn), key=load.estimate)
        else:
            chosen = min(drawn, key=lambda candidate: load.estimate(candidate.silo) / candidate.capacity).silo
        load.placed(chosen)
        return chosen

    def scores(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> Mapping[SiloAddress, float]:
        """The estimated load by capacity; the lower of those drawn wins."""
        load = self._loads.at(local)
        if load is None:
            return {}
        return {candidate.silo: load.estimate(candidate.silo) / candidate.capacity for candidate in view.candidates}


class PreferLocalPlacement:
    """The silo that decides, where it is a candidate; otherwise, and above the cap, as `activation-count`.

    The caps need the load, hence apply once the policy is attached; where both are given, the lower one holds.

    Args:
        max_local: stay local below this many activations here.
        max_local_ratio: stay local below this multiple of the candidates' mean, plus two. 2.0 serves well: it costs
            next to no locality where calls of one grain enter at one silo, and keeps the spread near random's where
            they do not.
    """

    name = "prefer-local"

    def __init__(self, *, max_local: int | None = None, max_local_ratio: float | None = None) -> None:
        if max_local is not None and max_local < 0:
            raise InvalidSettings(f"max_local is a number of activations, not {max_local}")
        if max_local_ratio is not None and not max_local_ratio >= 1:
            raise InvalidSettings(f"max_local_ratio is a multiple of the mean, at least 1, not {max_local_ratio}")
        self._max_local = max_local
        self._max_local_ratio = max_local_ratio
        self._elsewhere = ActivationCountPlacement()

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None]:
        return self._elsewhere.attach(runtime)

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        load = self._elsewhere.load(local)
        if (
            local is None
            or local not in view
            or (load is not None and load.known(local) >= self._cap(view, load, local))
        ):
            return self._elsewhere.choose(grain, view, local)
        if load is not None:
            load.placed(local)
        return local

    def scores(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> Mapping[SiloAddress, float]:
        """The estimated load, which decides where the local silo does not."""
        return self._elsewhere.scores(grain, view, local)

    def _cap(self, view: PlacementView, load: LoadView, local: SiloAddress) -> float:
        cap = math.inf if self._max_local is None else float(self._max_local)
        if self._max_local_ratio is not None:
            total = sum(load.known(candidate.silo) for candidate in view.candidates)
            whole = sum(candidate.capacity for candidate in view.candidates)
            own = next(candidate.capacity for candidate in view.candidates if candidate.silo == local)
            cap = min(cap, self._max_local_ratio * total * own / whole + LOCAL_HEADROOM)
        return cap


class ConsistentHashPlacement:
    """The candidate with the highest hash of its name and the grain (rendezvous hashing; Thaler and Ravishankar, 1998).

    The answer depends on nothing but the grain and the names of the candidates: every process gives the same one, and a
    restarted silo keeps its share, since it keeps its name. One more silo takes its share, 1/(N+1), evenly from the
    others; one less gives its grains evenly to the others; nothing else changes.

    Args:
        load_bound: skip a silo that has more than this multiple of the mean, in favour of the next highest hash. It
            needs the load, hence applies once attached, and silos that see different loads may then answer differently.
    """

    name = "consistent-hash"

    def __init__(self, *, load_bound: float | None = None) -> None:
        if load_bound is not None and not load_bound > 1:
            raise InvalidSettings(f"load_bound is a multiple of the mean, above 1 (such as 1.25), not {load_bound}")
        self._load_bound = load_bound
        self._loads = AttachedLoads()

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None] | None:
        return None if self._load_bound is None else self._loads.attach(runtime)

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        load = self._loads.at(local)
        if load is None or self._load_bound is None:
            return max(view.candidates, key=lambda candidate: _rank(grain, candidate)).silo
        ranked = sorted(view.candidates, key=lambda candidate: _rank(grain, candidate), reverse=True)
        total = sum(load.known(candidate.silo) for candidate in ranked) + 1
        whole = sum(candidate.capacity for candidate in ranked)
        chosen = next(
            candidate.silo
            for candidate in ranked  # one is below: not all of them can be above a multiple of their own share
            if load.known(candidate.silo) < math.ceil(self._load_bound * total * candidate.capacity / whole)
        )
        load.placed(chosen)
        return chosen

    def scores(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> Mapping[SiloAddress, float]:
        """The hash as a fraction of its range; the highest wins."""
        return {candidate.silo: _rank(grain, candidate)[0] / 2**64 for candidate in view.candidates}


def rendezvous(grain: GrainId, name: str, capacity: float = 1.0) -> float:
    """A silo's rank for a grain; the highest wins, each silo as often as its capacity says.

    It is what edges and clients may use to find out where `consistent-hash` places a grain.
    """
    # No kind, key or name holds a NUL, so that no two pairs make the same text.
    rank = stable_hash(f"{name}\0{grain}")
    return rank if capacity == 1.0 else ((rank + 0.5) / 2**64) ** (1.0 / capacity) * 2**64


def _rank(grain: GrainId, candidate: Candidate) -> tuple[float, SiloAddress]:
    return rendezvous(grain, candidate.name, candidate.capacity), candidate.silo
