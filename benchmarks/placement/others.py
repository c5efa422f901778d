"""The rules of other systems, each written anew from what its documentation and source describe; counts in, moves out.

What they are compared in is the rule alone: which silo gives how much to which, and when. That a move here keeps a
grain's state and calls, and that Akka moves shards and not actors, is left out of account.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

Moves = list[tuple[int, int, int]]
"""From which silo to which other, by their place among the living ones, how many."""


class Nothing:
    """No rebalancer."""

    name = "none"

    def moves(self, now: float, counts: Sequence[int]) -> Moves:
        return []


class OrleansRebalancer:
    """The activation rebalancer of Orleans, at its defaults: by entropy, in sessions of cycles.

    Each cycle pairs the emptiest silos with the fullest and moves a part of each difference that grows with the number
    of the cycle; three cycles that change little end the session. One move less than that is made, as its loop counts.
    """

    name = "orleans"
    CYCLE_S = 15.0
    QUANTUM = 1e-4
    DEVIATION = 1e-4
    STAGNANT_MAX = 3
    CYCLE_WEIGHT = SILO_WEIGHT = 0.1

    def __init__(self) -> None:
        self._due = 0.0
        self._cycle = self._stagnant = 0
        self._before = 0.0

    def moves(self, now: float, counts: Sequence[int]) -> Moves:
        if now < self._due:
            return []
        self._due = now + self.CYCLE_S
        silos, total = len(counts), sum(counts)
        if self._stagnant >= self.STAGNANT_MAX:
            self._end(now)
            return []
        parts = [max(count / total, 1e-10) for count in counts]
        entropy, highest = -sum(part * math.log(part) for part in parts), math.log(silos)
        allowed = min(0.1, self.DEVIATION * (10.0 ** int(math.log10(total / 10_000)) if total >= 10_000 else 1.0))
        self._cycle += 1
        if (highest - entropy) / highest < allowed:
            self._end(now)
            return []
        change, self._before = abs(entropy - self._before) / highest, entropy
        if change < self.QUANTUM:
            self._stagnant += 1
            return []
        self._stagnant = 0
        pace = (1 - math.exp(-self.CYCLE_WEIGHT * self._cycle)) / (1 + self.SILO_WEIGHT * (silos - 1))
        order = sorted(range(silos), key=lambda place: counts[place])
        found: Moves = []
        for low, high in zip(order[: silos // 2], reversed(order), strict=False):
            amount = int(entropy / highest * pace * (counts[high] - counts[low]) / 2) - 1
            if amount > 0:
                found.append((high, low, min(amount, counts[high])))
        return found

    def _end(self, now: float) -> None:
        self._cycle = self._stagnant = 0
        self._before = 0.0
        self._due = now + self.CYCLE_S


class EachForItself:
    """The rule of the actors project: each silo, once a minute, sheds at most ten of what it has above 1.2 × mean.

    What is shed is deactivated, and placed anew by its next call, on the emptier of two silos.
    """

    name = "actors"
    PERIOD_S, THRESHOLD, MOVES_MAX = 60.0, 1.2, 10

    def __init__(self) -> None:
        self._rng = random.Random(1)
        self._due: dict[int, float] = {}

    def moves(self, now: float, counts: Sequence[int]) -> Moves:
        found: Moves = []
        mean = sum(counts) / len(counts)
        for place, count in enumerate(counts):
            if now < self._due.setdefault(place, now + self._rng.uniform(0, self.PERIOD_S)):
                continue
            self._due[place] = now + self.PERIOD_S
            if count <= self.THRESHOLD * mean or count - mean < 1:
                continue
            for _ in range(min(self.MOVES_MAX, int(count - mean))):
                one, other = self._rng.sample(range(len(counts)), 2)
                to = one if counts[one] <= counts[other] else other
                if to != place:
                    found.append((place, to, 1))
        return found


class LeastShard:
    """Akka's and Pekko's strategy: every ten seconds at most twenty from above the even share to the emptiest."""

    name = "akka"
    PERIOD_S, ABSOLUTE, RELATIVE = 10.0, 20, 0.1

    def __init__(self) -> None:
        self._due = 0.0

    def moves(self, now: float, counts: Sequence[int]) -> Moves:
        if now < self._due:
            return []
        self._due = now + self.PERIOD_S
        left = max(1, min(int(self.RELATIVE * sum(counts)), self.ABSOLUTE))
        after, share = list(counts), -(-sum(counts) // len(counts))
        found: Moves = []
        for place in sorted(range(len(counts)), key=lambda place: -counts[place]):
            while left and after[place] > share:
                to = min(range(len(after)), key=after.__getitem__)
                after[place] -= 1
                after[to] += 1
                left -= 1
                found.append((place, to, 1))
        return found
