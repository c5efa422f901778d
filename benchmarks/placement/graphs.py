"""Call graphs: who talks to whom. Grains are numbers, and neighbours are computed, so that a million take no memory.

`halo`: games of a hub and eight players. `communities`: twenty grains that talk to the two on either side, and one
message in ten to anybody. `celebrities`: the same, with a third of the messages to one of ten grains. `random`: eight
neighbours, with no more in common. `none`: grains are called from outside alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

GRAPHS = ("none", "halo", "communities", "celebrities", "random")
GAME, COMMUNITY, CELEBRITIES = 9, 20, 10
MIXED = 0.1
"""The part of messages, in communities, that goes to anybody."""
FAN_RATE = 2.0
NEAR = (1, 2, COMMUNITY - 2, COMMUNITY - 1)


class Graph:
    """The neighbours of each grain, with their rates. Both ends of an edge have it."""

    def __init__(self, name: str, grains: int, seed: int) -> None:
        self.name = name
        self.grains = grains
        rng = random.Random(seed)
        self._steps = [rng.randrange(1, grains) for _ in range(4)]
        self.mixed = MIXED if name in ("communities", "celebrities") else 0.0
        self.has_groups = name in ("halo", "communities", "celebrities")
        self.group_size = {"halo": GAME, "communities": COMMUNITY, "celebrities": COMMUNITY}.get(name, 1)

    def group(self, grain: int) -> range:
        """The grains that talk to each other most, this one among them."""
        first = grain - grain % self.group_size
        return range(first, min(first + self.group_size, self.grains))

    def neighbours(self, grain: int) -> Sequence[tuple[int, float]]:
        group = self.group(grain)
        if self.name == "halo":
            if grain == group.start:
                return [(player, 1.0) for player in group if player != grain]
            return [(group.start, 1.0)]
        if self.name == "random":
            around = ((grain + way) % self.grains for step in self._steps for way in (step, -step))
            return [(other, 1.0) for other in around if other != grain]
        if not self.has_groups:
            return []
        near = [(group.start + (grain - group.start + step) % len(group), 1.0) for step in NEAR]
        near = [(other, rate) for other, rate in near if other != grain]
        if self.name == "celebrities":
            if _is_celebrity(grain):
                fans = range(grain // COMMUNITY, self.grains, CELEBRITIES)
                return [*near, *((fan, FAN_RATE) for fan in fans if not _is_celebrity(fan))]
            celebrity = grain % CELEBRITIES * COMMUNITY
            if celebrity < self.grains:
                near.append((celebrity, FAN_RATE))
        return near

    def activity(self, grain: int) -> float:
        """Messages per second: some grains are cold, most are not, and celebrities are never."""
        if self.name == "celebrities" and _is_celebrity(grain):
            return FAN_RATE * self.grains / CELEBRITIES
        return ((grain * 2654435761) % 997) / 997.0


def _is_celebrity(grain: int) -> bool:
    return grain % COMMUNITY == 0 and grain < CELEBRITIES * COMMUNITY
