"""Where a silo has just sent grains to be activated: later calls made there follow the first to the same place."""

from __future__ import annotations

from typing import Final

from silo.directory.addresses import GrainId, SiloAddress
from silo.routing.book import CallBook
from silo.routing.call import Call
from silo.routing.resolution import Destination

ENDED_SPARE: Final = 256
"""How many placings whose call has ended may stay noted, beyond twice as many as there are open calls."""


class Placings:
    """One for each grain that a call made here, which is still out, is having activated elsewhere.

    Args:
        book: the calls made here that are out.
    """

    def __init__(self, book: CallBook) -> None:
        self._book = book
        self.noted: dict[GrainId, tuple[Destination, int]] = {}
        """Where, and by which call. Usually none: whoever has an answer looks here first."""

    def note(self, call: Call, destination: Destination) -> None:
        """The call goes there to have its grain activated. What is noted of calls that have ended goes now and then."""
        if len(self.noted) > 2 * len(self._book) + ENDED_SPARE:
            for grain in [grain for grain, (_, first) in self.noted.items() if self._book.get(first) is None]:
                del self.noted[grain]
        self.noted[call.grain] = destination, call.id

    def of(self, grain: GrainId) -> Destination | None:
        """Where the grain is being activated; None where nobody here will hear what became of that."""
        noted = self.noted.get(grain)
        if noted is None:
            return None
        destination, first = noted
        if self._book.get(first) is not None:
            return destination
        del self.noted[grain]
        return None

    def end(self, grain: GrainId) -> Destination | None:
        """A call to the grain has come back: where it was being activated until now."""
        noted = self.noted.pop(grain, None)
        return None if noted is None else noted[0]

    def forget_silo(self, silo: SiloAddress) -> None:
        """No call goes there any more."""
        for grain, (destination, _) in list(self.noted.items()):
            if destination.place_on == silo:
                del self.noted[grain]
