"""Where one grain would rather be: plain comparisons of what it would gain with what its move costs.

A *leaf* is a grain that has at least half of its traffic with one other; every other one is a *hub*. Hubs decide first,
and with an eye on room: a silo that has none left for those a hub talks to is no place for it, however many of them are
there already. Leaves then follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.messages import Why
from silo.migration.repartitioning.neighbours import Tie
from silo.migration.repartitioning.settings import RepartitioningSettings

LEAF_SHARE = 0.5
"""A grain is a leaf if one peer carries this part of its traffic."""
HOME_BONUS = 1.05
"""Another place is better for a hub if it is so by this factor."""
HUB_GAIN_SHARE_MIN = 0.2
"""A hub moves for no less than this part of its traffic."""
SURE_AT = 3.0
"""A gain counts from so many of its standard errors on: what is a matter of chance moves nothing."""
ROOM_LOSS_SHARE_MAX = 0.15
"""A hub moves to where there is room at a loss of this part of its traffic, at most."""
ROOM_COSTS = 4.0
"""Such a hub has traffic worth so many moves within the horizon."""
CROWD_EXPONENT = 0.25
"""How strongly free room counts: a silo that is half full counts 0.84 of its affinity, one at 95 % 0.47."""
NO_FIT_FACTOR = 0.3
"""What a silo counts for that has no room for the hub and those it talks to."""
FREE_SHARE_MIN = 0.01
"""A silo without free room counts as having this."""


@dataclass(slots=True)
class Places:
    """What a planner takes the silos to have, while it plans one round; what it plans is counted in."""

    me: SiloAddress
    targets: Set[SiloAddress]
    """The silos that can be asked, without this one."""
    counts: dict[SiloAddress, float]
    caps: Mapping[SiloAddress, int]
    announced: Mapping[GrainId, SiloAddress] = field(default_factory=dict[GrainId, SiloAddress])
    """Grains that are about to be elsewhere than they were last seen."""

    def planned(self, target: SiloAddress) -> None:
        self.counts[target] += 1
        self.counts[self.me] -= 1

    def where(self, tie: Tie) -> SiloAddress:
        return self.announced.get(tie.peer, tie.silo)


class Choice(NamedTuple):
    """A better place for a grain."""

    target: SiloAddress
    why: Why
    gain: float
    """Messages per second that become local, less those that become remote."""
    cost: float
    """Messages that the move costs."""


def uncertainty(ties: Sequence[Tie], places: Places, target: SiloAddress, settings: RepartitioningSettings) -> float:
    """The standard error of the gain of a move, in messages per second.

    A rate that fades with the constant k, and was observed for the time t, has the variance of so many events in a
    window of 2/k tanh(kt/2) seconds; where one in n is observed, n times as much.
    """
    fading = math.log(2) / settings.half_life_s
    variance: float = 0.0
    for tie in ties:
        if places.where(tie) in (places.me, target):
            window = 2 / fading * math.tanh(fading * max(settings.age_min_s, tie.age_s) / 2)
            variance += tie.rate / window * (settings.local_every if tie.silo == places.me else 1)
    return math.sqrt(variance)


Cost = Callable[[], float | None]
"""What moving the grain costs, in messages; None where it is to stay. Asked only where there is a better place."""


def is_leaf(ties: Sequence[Tie]) -> bool:
    """Whether one peer carries at least half of the traffic."""
    rates = [tie.rate for tie in ties]
    return max(rates) >= LEAF_SHARE * sum(rates)


def affinities(ties: Sequence[Tie], places: Places) -> dict[SiloAddress, float]:
    """The messages per second with each silo."""
    found: dict[SiloAddress, float] = {places.me: 0.0}
    for tie in ties:
        at = places.where(tie)
        found[at] = found.get(at, 0.0) + tie.rate
    return found


def choose_for_leaf(
    ties: Sequence[Tie], places: Places, settings: RepartitioningSettings, cost_of: Cost
) -> Choice | None:
    """The silo with which it has most to do, if the move earns its cost."""
    heaviest = max(ties, key=lambda tie: tie.rate)
    if heaviest.age_s < settings.follow_after_s:
        return None  # a hub that is new has not found its own place yet
    affinity = affinities(ties, places)
    here = affinity[places.me]
    best = max(
        (silo for silo in affinity if silo == places.me or silo in places.targets), key=lambda silo: affinity[silo]
    )
    if best == places.me or (cost := cost_of()) is None:
        return None
    gain = affinity[best] - here
    if gain * settings.horizon_s > cost and gain > SURE_AT * uncertainty(ties, places, best, settings):
        return Choice(best, Why.LEAF, gain, cost)
    return None


def choose_for_hub(
    ties: Sequence[Tie], places: Places, settings: RepartitioningSettings, cost_of: Cost, *, may_make_room: bool
) -> Choice | None:
    """The silo with which it has most to do, by affinity and by room; at a small loss, if here is no room."""
    me = places.me
    affinity = affinities(ties, places)
    companions: dict[SiloAddress, int] = {}
    for tie in ties:
        at = places.where(tie)
        companions[at] = companions.get(at, 0) + 1

    def fits(silo: SiloAddress) -> bool:
        missing = len(ties) + 1 - companions.get(silo, 0) - (silo == me)
        return places.counts[silo] + missing <= places.caps[silo]

    def attraction(silo: SiloAddress) -> float:
        free = max(FREE_SHARE_MIN, 1.0 - places.counts[silo] / places.caps[silo])
        return affinity[silo] * math.pow(free, CROWD_EXPONENT) * (1.0 if fits(silo) else NO_FIT_FACTOR)

    best, strongest = me, attraction(me) * HOME_BONUS
    for silo in affinity:
        if silo in places.targets and (drawn := attraction(silo)) > strongest:
            best, strongest = silo, drawn
    if best == me or (cost := cost_of()) is None:
        return None
    gain = affinity[best] - affinity[me]
    traffic = sum(affinity.values())
    least = max(HUB_GAIN_SHARE_MIN * traffic, SURE_AT * uncertainty(ties, places, best, settings))
    if gain * settings.horizon_s > cost and gain > least:
        return Choice(best, Why.HUB, gain, cost)
    is_worth_it = traffic * settings.horizon_s > ROOM_COSTS * cost
    if may_make_room and is_worth_it and not fits(me) and gain >= -ROOM_LOSS_SHARE_MAX * traffic:
        return Choice(best, Why.ROOM, gain, cost)
    return None
