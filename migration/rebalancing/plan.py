"""The exact transfer plan: who gives how much to whom, so that all have their shares after the fewest moves.

No silo gives and takes in one plan, no giver falls below its share and no taker rises above it. So a plan cannot
overshoot, and what two plans of the same loads say is the same, wherever they are made.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import msgspec

from silo.directory.addresses import SiloAddress, stable_hash
from silo.migration.rebalancing.loads import LoadSnapshot, Measure, SiloLoad
from silo.migration.rebalancing.shares import Bounds, Share, fair_shares

SILOS_EXPLAINED_MAX = 40
"""How many silos and transfers an explanation names before it only counts."""


class Standing(msgspec.Struct, frozen=True):
    """One silo in a plan: what it has, and what it should have."""

    silo: SiloAddress
    name: str
    has: int
    share: Share
    capacity: float = 1.0
    note: str = ""
    """What keeps it from giving or taking."""

    @property
    def surplus(self) -> int:
        """How much it has above its target; below zero what it lacks."""
        return self.has - self.share.target


class Transfer(msgspec.Struct, frozen=True):
    """So much of the measure goes from one silo to another."""

    donor: SiloAddress
    receiver: SiloAddress
    amount: int
    rest: int = 0
    """What is to follow by later plans, which the budget had no room for."""


class TransferPlan(msgspec.Struct, frozen=True):
    """Who gives how much to whom. Making one moves nothing."""

    id: str
    """The same for the same transfers from the same loads."""
    loads_version: int
    view_version: int
    measure: Measure
    standings: tuple[Standing, ...]
    transfers: tuple[Transfer, ...]
    needed: int
    """What must move for all to have their shares: no plan does with less."""
    unit: int
    """What a grain weighs on average, in the measure."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Silos that the plan does not touch, by name, each with the reason."""

    @property
    def amount(self) -> int:
        """How much moves by this plan; less than needed where the budget is smaller."""
        return sum(transfer.amount for transfer in self.transfers)

    @property
    def spread(self) -> float:
        """How much the fullest silo has, as a multiple of what its capacity would give it; 1.0 is even."""
        return spread_of(self.standings)

    def target_of(self, silo: SiloAddress) -> int | None:
        """What the silo has at most when the plan is carried out; None where the plan does not know it."""
        return next((one.share.target for one in self.standings if one.silo == silo), None)

    def from_donor(self, silo: SiloAddress) -> tuple[Transfer, ...]:
        return tuple(transfer for transfer in self.transfers if transfer.donor == silo)

    def explain(self) -> str:
        """The plan in words: what moves, what each silo has and should have, and who was left out for what reason."""
        names = {one.silo: one.name for one in self.standings}
        lines = [
            f"plan {self.id}, of loads {self.loads_version} in view {self.view_version}:"
            f" by {self.measure}, spread {self.spread:.2f}",
            f"  {self.amount:,} of the {self.needed:,} that must move at least"
            + (": the budget leaves the rest for later" if self.amount < self.needed else ""),
        ]
        lines += _cut(
            f"  {one.name}: has {one.has:,}, share {one.share.exact:,.1f},"
            + (f" {'gives' if one.surplus > 0 else 'takes'} {abs(one.surplus):,}" if one.surplus else " stays")
            + (f" ({one.note})" if one.note else "")
            for one in self.standings
        )
        lines += _cut(f"  {names[one.donor]} -> {names[one.receiver]}: {one.amount:,}" for one in self.transfers)
        lines += _cut(f"  {name} is left out: {reason}" for name, reason in self.left_out)
        return "\n".join(lines)


def make_plan(loads: LoadSnapshot, measure: Measure, *, budget_grains: int, bite_grains: int = 1) -> TransferPlan:
    """The plan that these loads call for. It moves nothing, and depends on nothing else.

    Args:
        budget_grains: how many grains may move by this plan.
        bite_grains: what the budget does not allow at once goes in pieces of no less, so that grains that belong
            together can go together.
    """
    standings, unit = stand(loads, measure)
    givers = sorted((one for one in standings if one.surplus > 0), key=lambda one: -one.surplus)
    takers = sorted((one for one in standings if one.surplus < 0), key=lambda one: one.surplus)
    needed = sum(one.surplus for one in givers)
    # What is less than half a grain is not worth the words.
    pairs = [pair for pair in _pairs(givers, takers) if pair.amount >= (unit + 1) // 2]
    transfers = tuple(_within(budget_grains * unit, pairs, bite_grains * unit))
    left_out = tuple((one.name, one.silent) for one in loads.silos if one.silent)
    identity = f"{loads.version} {loads.view_version} {measure} {standings} {transfers}"
    return TransferPlan(
        f"{stable_hash(identity):016x}",
        loads.version,
        loads.view_version,
        measure,
        tuple(standings),
        transfers,
        needed,
        unit,
        left_out,
    )


def spread_of(standings: Sequence[Standing]) -> float:
    """How much the fullest silo has, as a multiple of what its capacity would give it; 1.0 is even."""
    total = sum(one.has for one in standings)
    if not total:
        return 1.0
    return max(one.has / one.capacity for one in standings) * sum(one.capacity for one in standings) / total


def stand(loads: LoadSnapshot, measure: Measure) -> tuple[list[Standing], int]:
    """What each silo has and should have, in order of address; and what a grain weighs on average."""
    known = loads.known()
    grains = sum(one.amount(Measure.COUNT) if measure is Measure.COUNT else one.count for one in known)
    unit = 1 if measure is Measure.COUNT else max(1, sum(one.amount(measure) for one in known) // max(1, grains))
    bounds = [_bounds(one, measure, unit) for one in known]
    shares = fair_shares(bounds)
    return [
        Standing(one.silo, one.name, bound.has, share, one.capacity, _note(one, bound, share))
        for one, bound, share in zip(known, bounds, shares, strict=True)
    ], unit


def _bounds(load: SiloLoad, measure: Measure, unit: int) -> Bounds:
    has = load.amount(measure)
    least, most = 0, _UNBOUNDED
    if load.movable is not None and load.count:
        movable = min(load.movable, load.count)
        least = has - has * movable // load.count
    if load.activations_max:
        most = max(has, load.activations_max * unit)
    if load.no_taking:
        most = has
    return Bounds(has, least, most, load.capacity)


_UNBOUNDED = 2**62


def _note(load: SiloLoad, bound: Bounds, share: Share) -> str:
    if load.no_taking and share.target == bound.most:
        return f"takes nothing: {load.no_taking}"
    if 0 < bound.least == share.target:
        return "the rest of what it has may not be moved"
    if share.target == bound.most:
        return f"hosts at most {load.activations_max:,}"
    return ""


def _pairs(givers: Sequence[Standing], takers: Sequence[Standing]) -> Iterator[Transfer]:
    """The larger give to the larger, so that few pairs talk."""
    gives, takes = [one.surplus for one in givers], [-one.surplus for one in takers]
    giver = taker = 0
    while giver < len(givers) and taker < len(takers):
        amount = min(gives[giver], takes[taker])
        yield Transfer(givers[giver].silo, takers[taker].silo, amount)
        gives[giver] -= amount
        takes[taker] -= amount
        giver += gives[giver] == 0
        taker += takes[taker] == 0


def _within(budget: int, pairs: Sequence[Transfer], bite: int) -> Iterator[Transfer]:
    """As much of the transfers as the budget allows, bite by bite, always from the one with the most left."""
    if sum(pair.amount for pair in pairs) <= budget:
        yield from pairs
        return
    left = [(-pair.amount, place) for place, pair in enumerate(pairs)]
    heapq.heapify(left)
    granted = [0] * len(pairs)
    while left:
        most, place = heapq.heappop(left)
        piece = min(-most, bite)
        if piece > budget:
            break
        budget -= piece
        granted[place] += piece
        if most + piece < 0:
            heapq.heappush(left, (most + piece, place))
    for pair, amount in zip(pairs, granted, strict=True):
        if amount:
            yield Transfer(pair.donor, pair.receiver, amount, pair.amount - amount)


def _cut(lines: Iterator[str]) -> list[str]:
    told = list(lines)
    rest = len(told) - SILOS_EXPLAINED_MAX
    return told if rest <= 0 else [*told[:SILOS_EXPLAINED_MAX], f"  and {rest} more"]
