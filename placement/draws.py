"""Chance among candidates, in proportion to what they can carry."""

from __future__ import annotations

import heapq
import itertools

from silo.directory.addresses import SiloAddress
from silo.placement.policy import Candidate, PlacementView


class Draws:
    """Draws for one policy. Which candidates differ in capacity is looked up once for as long as they are the same."""

    def __init__(self) -> None:
        self._candidates: tuple[Candidate, ...] = ()
        self._mounting: list[float] | None = None

    def are_even(self, view: PlacementView) -> bool:
        """Whether all candidates have the same capacity."""
        return self._capacities(view.candidates) is None

    def one(self, view: PlacementView) -> SiloAddress:
        """Any candidate, each as likely as its capacity says."""
        mounting = self._capacities(view.candidates)
        if mounting is None:
            return view.rng.choice(view.candidates).silo
        return view.rng.choices(view.candidates, cum_weights=mounting)[0].silo

    def some(self, view: PlacementView, count: int) -> list[Candidate]:
        """So many different candidates, or all, in the order drawn (Efraimidis and Spirakis, 2006)."""
        count = min(count, len(view.candidates))
        if self._capacities(view.candidates) is None:
            return view.rng.sample(view.candidates, count)
        drawn = [(view.rng.random() ** (1 / one.capacity), place) for place, one in enumerate(view.candidates)]
        return [view.candidates[place] for _, place in heapq.nlargest(count, drawn)]

    def _capacities(self, candidates: tuple[Candidate, ...]) -> list[float] | None:
        """The capacities, each with those before it added; None where all are the same."""
        if candidates is not self._candidates:
            self._candidates = candidates
            even = all(one.capacity == candidates[0].capacity for one in candidates)
            self._mounting = None if even else list(itertools.accumulate(one.capacity for one in candidates))
        return self._mounting
