"""When a bucket of the directory takes registrations again after it has lost rows: events in, orders out.

A bucket has a *life*, which is lost with its rows and ends with the run of its store. In a life that is new nobody may
register anything until every living silo has *claimed* there what it serves; then the life is *settled*, and whatever
is active stands in it. One core for each bucket, in each silo:

    UNKNOWN -> DRAINING -> CLAIMING -> CLAIMED -> SETTLED
                  ^___________________________________| in doubt

DRAINING comes first, since a registration of this silo that is still out may have been carried out in the life that is
over: its answer counts for nothing, and what it made must not be missing from the claim.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

# --------------------------------------------------------------------------------------------------------------- events


class Needed(msgspec.Struct, frozen=True, gc=False):
    """Somebody wants to register a grain of this bucket."""


class Doubted(msgspec.Struct, frozen=True, gc=False):
    """The bucket may have lost rows.

    Args:
        is_over: whether the life that is known here must not go on, though the bucket may still be in it: the store has
            come back as it was earlier.
    """

    is_over: bool = False


class Drained(msgspec.Struct, frozen=True, gc=False):
    """No registration of this silo is out."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """This silo has said what it knows; the bucket has this life."""

    life: str
    is_settled: bool


class Seen(msgspec.Struct, frozen=True, gc=False):
    """The bucket was seen to have this life."""

    life: str
    is_settled: bool


Event = Needed | Doubted | Drained | Claimed | Seen
_DOUBTED: Final = Doubted()

# --------------------------------------------------------------------------------------------------------------- orders


class AwaitRegistrations(msgspec.Struct, frozen=True, gc=False):
    """Say `Drained` once no registration of this silo is out; none goes out from now on."""


class SendClaim(msgspec.Struct, frozen=True, gc=False):
    """Claim all that this silo serves in the bucket, and say `Claimed` with what comes of it.

    Args:
        over: a life that must not go on; empty for none.
    """

    over: str


class Open(msgspec.Struct, frozen=True, gc=False):
    """Registrations may go out."""


Order = AwaitRegistrations | SendClaim | Open


class Phase(enum.Enum):
    """What a silo knows of a bucket."""

    UNKNOWN = "unknown"
    DRAINING = "draining"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    """This silo has said what it knows; others have not."""
    SETTLED = "settled"


class BucketSettling:
    """One bucket, as one silo knows it. `life` is the one in which registrations may count, while it is settled."""

    __slots__ = ("_again", "_over", "life", "phase")

    def __init__(self) -> None:
        self.phase = Phase.UNKNOWN
        self.life = ""
        self._over = ""  # a life that must not go on
        self._again: Doubted | None = None  # what has come while a claim was out

    @property
    def is_settled(self) -> bool:
        return self.phase is Phase.SETTLED

    def on(self, event: Event) -> list[Order]:
        """What follows from the event; nothing, where that changes nothing."""
        match self.phase, event:  # what comes for every bucket whenever a silo starts is first
            case Phase.UNKNOWN, Needed() | Doubted():
                return self._drain(_DOUBTED)
            case Phase.DRAINING, Drained():
                self.phase = Phase.CLAIMING
                return [SendClaim(self._over)]
            case Phase.CLAIMING, Claimed(life, is_settled):
                self.life, self._over = life, ""
                if self._again is not None:
                    again, self._again = self._again, None
                    return self._drain(again)
                return self._settled_if(is_settled)
            case Phase.CLAIMED, Seen(life, is_settled) if life == self.life:
                return self._settled_if(is_settled)
            case ((Phase.CLAIMED | Phase.SETTLED), Doubted()):
                return self._drain(event)
            case ((Phase.CLAIMED | Phase.SETTLED), Seen(life)) if life != self.life:
                return self._drain(_DOUBTED)
            case Phase.CLAIMING, Doubted(is_over):
                self._again = Doubted(is_over or (self._again is not None and self._again.is_over))
                return []
            case _:
                return []  # it is known, or will be with what is under way; or nobody has needed it yet

    def _drain(self, doubted: Doubted) -> list[Order]:
        self.phase = Phase.DRAINING
        self._over = self.life if doubted.is_over else ""
        return [AwaitRegistrations()]

    def _settled_if(self, is_settled: bool) -> list[Order]:
        self.phase = Phase.SETTLED if is_settled else Phase.CLAIMED
        return [Open()] if is_settled else []
