"""Fair shares in whole numbers: what each silo should have, by its capacity and within its bounds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

CAPACITY_UNITS = 1000
"""Capacities count in thousandths, so that shares are computed in whole numbers and are the same on every machine."""


class Share(msgspec.Struct, frozen=True):
    """What one silo should have: `target`, one of the two whole numbers around its exact share."""

    exact: float
    floor: int
    ceiling: int
    target: int


class Bounds(msgspec.Struct, frozen=True):
    """What one silo has, and between which numbers that may be brought; `least <= has <= most`."""

    has: int
    least: int
    most: int
    capacity: float = 1.0


def fair_shares(silos: Sequence[Bounds]) -> list[Share]:
    """Targets that differ from the exact shares by less than one, sum up to what there is, and need the fewest moves.

    Where a bound keeps a silo from its share, the others share the rest. Those that have more than their share keep the
    larger of the two whole numbers and those that have less get the smaller, so that as little as possible moves; what
    is then left over, or missing, goes by the largest remainder.
    """
    units = [max(1, round(one.capacity * CAPACITY_UNITS)) for one in silos]
    pinned = _pinned(silos, units)
    free = [place for place in range(len(silos)) if place not in pinned]
    total = sum(one.has for one in silos) - sum(pinned.values())
    whole = sum(units[place] for place in free) or 1
    shares: dict[int, Share] = {place: Share(float(value), value, value, value) for place, value in pinned.items()}
    remainders: dict[int, int] = {}
    targets: dict[int, int] = {}
    for place in free:
        floor, remainder = divmod(total * units[place], whole)
        ceiling = floor + (remainder > 0)
        remainders[place] = remainder
        targets[place] = min(max(silos[place].has, floor), ceiling)
        shares[place] = Share(total * units[place] / whole, floor, ceiling, targets[place])
    missing = total - sum(targets.values())
    step = 1 if missing > 0 else -1
    # Stable, and in order of address among equals: every silo that plans from the same loads makes the same plan.
    for place in sorted(free, key=lambda place: -step * remainders[place]):
        if not missing:
            break
        share = shares[place]
        if targets[place] != (share.ceiling if step > 0 else share.floor):
            targets[place] += step
            missing -= step
    return [
        msgspec.structs.replace(shares[place], target=targets.get(place, shares[place].target))
        for place in range(len(silos))
    ]


def _pinned(silos: Sequence[Bounds], units: Sequence[int]) -> dict[int, int]:
    """The silos that a bound keeps from their share, with what they have in the end.

    Those whose bounds lie on the side that is missed by more in all are settled first: settling them moves the shares
    of the others away from that side, so that none of them would come back between its bounds.
    """
    pinned: dict[int, int] = {}
    free: list[int] = list(range(len(silos)))
    while free:
        total = sum(one.has for one in silos) - sum(pinned.values())
        whole = sum(units[place] for place in free)
        short: list[int] = [place for place in free if total * units[place] < silos[place].least * whole]
        long: list[int] = [place for place in free if total * units[place] > silos[place].most * whole]
        if not short and not long:
            break
        missing = sum(silos[place].least * whole - total * units[place] for place in short)
        beyond = sum(total * units[place] - silos[place].most * whole for place in long)
        if missing >= beyond:
            pinned.update((place, silos[place].least) for place in short)
        if beyond >= missing:
            pinned.update((place, silos[place].most) for place in long)
        free = [place for place in free if place not in pinned]
    return pinned
