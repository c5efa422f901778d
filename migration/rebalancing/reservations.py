"""What a receiver has promised room for: the last word on how much comes, whatever the donors' plans were made from.

Donors may plan from loads of different ages, and twice from the same. The receiver counts what it hosts, what is coming
and what it has promised, so that it is never filled beyond the target that its newest plan gives it.
"""

from __future__ import annotations

import msgspec

from silo.directory.addresses import SiloAddress

RESERVED_S = 60.0
"""For how long room is kept for grains that do not come, in seconds."""


class Asked(msgspec.Struct, frozen=True):
    """A donor's wish to send so much by a plan."""

    plan: str
    loads_version: int
    donor: SiloAddress
    amount: int
    target: int
    """What the receiver has at most when the plan is carried out, by that plan."""


class Granted(msgspec.Struct, frozen=True):
    """How much may come by the plan; what arrives is told of by the plan's id."""

    plan: str
    amount: int
    why: str = ""
    """Why it is less than was asked for."""


class _Promise(msgspec.Struct):
    amount: int
    until: float


class Reservations:
    """The receiver's book. Time is an argument, in seconds.

    Args:
        reserved_s: for how long room is kept.
    """

    def __init__(self, reserved_s: float = RESERVED_S) -> None:
        self._reserved_s = reserved_s
        self._newest = -1
        self._promises: dict[tuple[str, SiloAddress], _Promise] = {}

    def ask(self, asked: Asked, hosted: int, now: float) -> Granted:
        """Room for as much as fits below the target, beside what is hosted (with what is arriving) and promised.

        A plan that is older than the newest heard of gets nothing: its loads are not what they were. Asking again
        by the same plan grants nothing twice.
        """
        self._forget_late(now)
        if asked.loads_version < self._newest:
            why = f"plan {asked.plan} is of loads {asked.loads_version}, and {self._newest} have been planned from"
            return Granted(asked.plan, 0, why)
        self._newest = asked.loads_version
        before = self._promises.get((asked.plan, asked.donor))
        if before is not None:
            return Granted(asked.plan, before.amount, "what is left of what was granted before")
        room = max(0, asked.target - hosted - self.reserved(now))
        amount = min(asked.amount, room)
        self._promises[asked.plan, asked.donor] = _Promise(amount, now + self._reserved_s)
        why = "" if amount == asked.amount else f"there is room for {room:,} below {asked.target:,}"
        return Granted(asked.plan, amount, why)

    def settle(self, plan: str, donor: SiloAddress, amount: int) -> None:
        """So much of a promise is over: it has arrived, and counts as hosted, or will not come."""
        promise = self._promises.get((plan, donor))
        if promise is None:  # its time was up
            return
        promise.amount = max(0, promise.amount - amount)

    def reserved(self, now: float) -> int:
        """What is promised and has not come."""
        return sum(promise.amount for promise in self._promises.values() if promise.until > now)

    def _forget_late(self, now: float) -> None:
        for key in [key for key, promise in self._promises.items() if promise.until <= now]:
            del self._promises[key]
