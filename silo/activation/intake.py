"""Which activations a silo begins now, and which wait for a place: plain code; the time is an argument.

A silo makes so many activations at a time. What comes beyond waits in order, and begins as places are free. An
activation whose `on_activate` waits for another grain lends its place meanwhile, to those alone that are called by
grains. So every place is held by one that works, which ends in time, or may be used by whatever the holder waits for:
no chain of grains, however deep and over however many silos, waits for a place that it holds itself. One that waits
for what no activation brings about, such as a directory that has lost rows, is set aside: it holds no place until then.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

WARM_UP_FLOOR: Final = 1 / 16
"""The share of its cap that a silo begins at a time when it has just started, where it is to warm up."""


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """How many activations a silo takes; see the settings of the same names."""

    activations_in_flight_max: int = 1_000
    warm_up_s: float = 0.0
    activations_max: int | None = None

    def cap_at(self, age_s: float) -> int:
        """How many activations a silo of this age begins at a time: in proportion to it, until it is warm."""
        full = self.activations_in_flight_max
        if age_s >= self.warm_up_s:
            return full
        floor = max(1, math.floor(full * WARM_UP_FLOOR))
        return max(floor, math.floor(full * max(0.0, age_s) / self.warm_up_s))

    def why_full(self, activations: int) -> str:
        """Why a silo with so many takes no more; empty where it does."""
        if self.activations_max is None or activations < self.activations_max:
            return ""
        return full(activations, self.activations_max)


def full(activations: int, activations_max: int) -> str:
    """What is said of a silo that takes no more."""
    return f"full: {activations} of {activations_max} activations"


class Intake(Generic[T]):
    """The places of one silo: who holds one, who has lent his, and who waits for one, in order.

    Args:
        born: the time from which its age counts.
    """

    def __init__(self, limits: IntakeLimits, born: float) -> None:
        self._limits = limits
        self._born = born
        self._is_warm = not limits.warm_up_s
        self._cap = limits.activations_in_flight_max
        self._holding: set[T] = set()
        self._lent: Counter[T] = Counter()
        """Those that hold a place and wait for other grains, with how many calls."""
        self._outer: OrderedDict[T, int] = OrderedDict()
        self._inner: OrderedDict[T, int] = OrderedDict()
        """Those that wait, in order, each with the number in which it came. The inner ones are called by grains.
        Ordered dicts, since finding the first of a plain one takes a look at all that were taken out before it."""
        self._came = 0
        self._called: set[T] = set()
        """Those of all here that are called by grains."""
        self._aside: set[T] = set()

    @property
    def in_flight(self) -> int:
        """How many are being activated, with those that have lent their places."""
        return len(self._holding)

    @property
    def waiting_count(self) -> int:
        return len(self._outer) + len(self._inner)

    def cap(self, now: float) -> int:
        """How many this silo begins at a time, by now."""
        if self._is_warm:
            return self._cap
        age_s = now - self._born
        self._is_warm = age_s >= self._limits.warm_up_s
        return self._limits.cap_at(age_s)

    def grows_at(self, now: float) -> float | None:
        """When the cap will be larger, since the silo warms up; None where it has all that it will get."""
        cap = self.cap(now)
        if self._is_warm:
            return None
        return self._born + self._limits.warm_up_s * (cap + 1) / self._cap

    def enter(self, one: T, now: float, *, inner: bool) -> bool:
        """It wants to begin. True if it does at once, and holds a place; else it waits, and `next` says for how long.

        Args:
            inner: whether it is a grain that calls it.
        """
        if inner:
            self._called.add(one)
        if not self._outer and not self._inner and len(self._holding) < self.cap(now):
            self._holding.add(one)
            return True
        self._came += 1
        (self._inner if inner else self._outer)[one] = self._came
        return False

    def hasten(self, one: T) -> None:
        """A grain calls it, too, by now."""
        came = self._outer.pop(one, None)
        if came is not None:
            self._inner[one] = came
        if came is not None or one in self._holding or one in self._aside:
            self._called.add(one)

    def next(self, now: float) -> T | None:
        """The next one that may begin, which holds a place from here on; None where nobody may."""
        cap = self.cap(now)
        if len(self._holding) - len(self._lent) >= cap:
            return None
        inner = next(iter(self._inner.items()), None)
        outer = next(iter(self._outer.items()), None) if len(self._holding) < cap else None
        if inner is not None and (outer is None or inner[1] < outer[1]):
            first, queue = inner[0], self._inner
        elif outer is not None:
            first, queue = outer[0], self._outer
        else:
            return None
        del queue[first]
        self._holding.add(first)
        return first

    def lend(self, one: T) -> None:
        """It waits for another grain, once more; its place, if it has one, may be used meanwhile."""
        if one in self._holding:
            self._lent[one] += 1

    def take_back(self, one: T) -> None:
        """It waits for one grain less."""
        if one in self._lent:
            self._lent[one] -= 1
            if not self._lent[one]:
                del self._lent[one]

    def set_aside(self, one: T) -> None:
        """It waits for what no activation brings about: its place, if it has one, is free until it comes back."""
        if one in self._holding:
            self._holding.discard(one)
            self._lent.pop(one, None)
            self._aside.add(one)

    def come_back(self, one: T, now: float) -> bool:
        """As `enter`, for one that was set aside; it waits behind those that have come meanwhile."""
        self._aside.discard(one)
        return self.enter(one, now, inner=one in self._called)

    def leave(self, one: T) -> None:
        """It has been activated, or will not be: its place is free, or it waits no more."""
        self._holding.discard(one)
        self._aside.discard(one)
        self._called.discard(one)
        self._lent.pop(one, None)
        self._outer.pop(one, None)
        self._inner.pop(one, None)

    def close(self) -> None:
        """Nobody begins any more."""
        self._outer.clear()
        self._inner.clear()
