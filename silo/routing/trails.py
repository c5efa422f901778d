"""The ways on which calls of other silos were sent on, for those that come behind them.

Calls of one caller to one grain run in the order in which they were made, and on roads of unlike length they would lose
it: one that was sent on to a silo that the grain has just left comes back later than the grain itself, and by then the
next ones are here. So they take the same way; not those that came back and are sent again, which are out of order
anyway. Their caller's silo hears of it (`Forwarded`) and sends nothing more by that road before they are all admitted,
so that none but those already on their way need to.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from silo.directory.addresses import GrainId
from silo.routing.call import Call
from silo.routing.resolution import Destination

TRAILS_MAX: Final = 10_000
"""How many are noted; the oldest go first."""
FOLLOWED_S: Final = 5.0
"""For how long calls follow one that was sent on, at most: nobody here hears what became of it."""


class Trail(NamedTuple):
    """Where the calls of one caller to one grain were sent on."""

    destination: Destination
    epoch: int
    """Of the entry that their caller's silo went by. It goes by a newer one when it has heard of it."""
    until: float


class Trails:
    """One for each caller and grain of which calls were sent on lately, the oldest first."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, GrainId], Trail] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, call: Call, destination: Destination, now: float) -> None:
        """The call goes on to there, having come from its caller's silo."""
        self._drop_old(now)
        if len(self._noted) >= TRAILS_MAX:
            del self._noted[next(iter(self._noted))]
        key = call.caller, call.grain
        before = self._noted.pop(key, None)
        epoch = call.sender_epoch if before is None else max(before.epoch, call.sender_epoch)
        self._noted[key] = Trail(destination, epoch, now + FOLLOWED_S)

    def of(self, call: Call, now: float) -> Destination | None:
        """Where those before this call went that came by the same road; None where there are none."""
        trail = self._noted.get((call.caller, call.grain))
        if trail is None or call.sender_epoch > trail.epoch:
            return None
        if now >= trail.until:
            self._drop_old(now)
            return None
        return trail.destination

    def _drop_old(self, now: float) -> None:
        while self._noted and now >= next(iter(self._noted.values())).until:
            del self._noted[next(iter(self._noted))]
