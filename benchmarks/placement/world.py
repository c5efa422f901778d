"""A cluster on paper whose grains have neighbours: where each is, and how many messages are remote."""

from __future__ import annotations

import random
from collections.abc import Iterable

from benchmarks.placement.graphs import Graph

GONE = -1
"""The home of a grain that is not active."""


class World:
    """Silos by number, and on each its grains. What is remote is kept up to date move by move.

    It starts settled: groups of the call graph together, and as many grains on each silo.
    """

    def __init__(self, graph: Graph, silos: int, seed: int) -> None:
        self.graph = graph
        self.rng = random.Random(seed)
        self.hosted: list[list[int]] = [[] for _ in range(silos)]
        self.live = list(range(silos))
        self.home = [GONE] * graph.grains
        self._index = [0] * graph.grains
        self._local = self._all = 0.0
        self.changed_at = -3600.0
        """When the members last changed, in seconds."""
        order = list(range(0, graph.grains, graph.group_size))
        self.rng.shuffle(order)
        homes = [(grain, place % silos) for place, first in enumerate(order) for grain in graph.group(first)]
        self.rng.shuffle(homes)  # so that no silo has the grains of a group one behind the other
        for grain, silo in homes:
            self.put(grain, silo)

    def counts(self) -> list[int]:
        """How many grains each living silo has."""
        return [len(self.hosted[silo]) for silo in self.live]

    def put(self, grain: int, silo: int) -> None:
        """The grain becomes active there."""
        here = self.hosted[silo]
        self.home[grain] = silo
        self._index[grain] = len(here)
        here.append(grain)
        for other, rate in self.graph.neighbours(grain):
            home = self.home[other]
            if home != GONE and other != grain:
                self._all += rate
                self._local += rate * (home == silo)

    def take(self, grain: int) -> int:
        """The grain is active no more; returns where it was."""
        silo = self._lift(grain)
        for other, rate in self.graph.neighbours(grain):
            home = self.home[other]
            if home != GONE:
                self._all -= rate
                self._local -= rate * (home == silo)
        return silo

    def move(self, grain: int, silo: int) -> None:
        """The grain goes on there, with all that it is."""
        before = self._lift(grain)
        here = self.hosted[silo]
        self.home[grain] = silo
        self._index[grain] = len(here)
        here.append(grain)
        for other, rate in self.graph.neighbours(grain):
            home = self.home[other]
            self._local += rate * ((home == silo) - (home == before))

    def _lift(self, grain: int) -> int:
        silo = self.home[grain]
        here, place = self.hosted[silo], self._index[grain]
        last = here.pop()
        if last != grain:
            here[place] = last
            self._index[last] = place
        self.home[grain] = GONE
        return silo

    def remote(self) -> float | None:
        """The part of all messages between grains that goes from silo to silo; None where there are none."""
        if self._all <= 0:
            return None
        total = sum(len(self.hosted[silo]) for silo in self.live) or 1
        anywhere = 1.0 - sum((len(self.hosted[silo]) / total) ** 2 for silo in self.live)
        mixed = self.graph.mixed
        return (1 - mixed) * (1.0 - self._local / self._all) + mixed * anywhere

    def join(self, silos: int, now: float) -> None:
        self.live += range(len(self.hosted), len(self.hosted) + silos)
        self.hosted += [[] for _ in range(silos)]
        self.changed_at = now

    def lose(self, silos: Iterable[int], now: float) -> list[int]:
        """These silos are gone; returns the grains that they had, which are active nowhere."""
        grains = [grain for silo in silos for grain in list(self.hosted[silo])]
        for grain in grains:
            self.take(grain)
        self.live = [silo for silo in self.live if silo not in set(silos)]
        self.changed_at = now
        return grains
