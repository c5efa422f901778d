"""The cluster's own hash rule for those in front of it: an HTTP edge, a load balancer's plug-in, a client's router.

An edge that sends the calls of a grain where `consistent-hash` would place it, and silos that place where calls enter
(`prefer-local`), agree without talking: every call is local.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import cast

from silo.directory.addresses import GrainId
from silo.directory.errors import InvalidSettings
from silo.placement.policies import rendezvous

LOAD_BOUND = 1.25
GRAINS_MAX = 1_000_000
"""How many grains an edge remembers; when there are more, it forgets those that it has known longest."""


class EdgeRoutes:
    """Which silo the calls of each grain go to, by rendezvous hashing with a bound on how many grains a silo gets.

    A grain keeps its silo while that is there, so one more silo takes only new grains, and one less gives away only its
    own. The bound makes answers depend on what came before: edges that are to agree share one of these, or have none.

    Args:
        silos: their names, with their capacities or without.
        load_bound: no silo gets more than this multiple of its share; None for rendezvous alone, without memory.
        grains_expected: shares are of so many grains at least: the first ones need not make way for what is to come.
        grains_max: how many routes are remembered.
    """

    def __init__(
        self,
        silos: Mapping[str, float] | Iterable[str],
        *,
        load_bound: float | None = LOAD_BOUND,
        grains_expected: int = 0,
        grains_max: int = GRAINS_MAX,
    ) -> None:
        if load_bound is not None and not load_bound > 1:
            raise InvalidSettings(f"load_bound is a multiple of the mean, above 1 (such as 1.25), not {load_bound}")
        self._load_bound = load_bound
        self._grains_expected = grains_expected
        self._grains_max = grains_max
        self._routes: dict[GrainId, str] = {}
        self._counts: Counter[str] = Counter()
        self._silos: dict[str, float] = {}
        self.members(silos)

    def members(self, silos: Mapping[str, float] | Iterable[str]) -> None:
        """These are the silos now. Grains of those that are gone are routed anew when they are asked for."""
        if isinstance(silos, Mapping):
            self._silos = dict(cast("Mapping[str, float]", silos))
        else:
            self._silos = dict.fromkeys(silos, 1.0)
        if not self._silos:
            raise InvalidSettings("an edge needs at least one silo to route to")
        for name in set(self._counts) - set(self._silos):
            del self._counts[name]

    def route(self, grain: GrainId) -> str:
        """The name of the silo that the grain's calls go to."""
        if self._load_bound is None:
            return max(self._silos, key=lambda name: rendezvous(grain, name, self._silos[name]))
        known = self._routes.get(grain)
        if known in self._silos:
            return known
        total = max(self._counts.total() + 1, self._grains_expected)
        whole = sum(self._silos.values())
        ranked = sorted(self._silos, key=lambda name: rendezvous(grain, name, self._silos[name]), reverse=True)
        chosen = next(
            name
            for name in ranked  # one is below: not all of them can be above a multiple of their own share
            if self._counts[name] < math.ceil(self._load_bound * total * self._silos[name] / whole)
        )
        self._remember(grain, chosen)
        return chosen

    def _remember(self, grain: GrainId, silo: str) -> None:
        self._routes.pop(grain, None)
        if len(self._routes) >= self._grains_max:
            oldest = next(iter(self._routes))
            self._counts[self._routes.pop(oldest)] -= 1
        self._routes[grain] = silo
        self._counts[silo] += 1
