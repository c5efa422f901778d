"""What has become of grains, as one silo remembers it: the last transitions of those that were in trouble, or moved.

For operators who ask. It is written where something fails, where a move ends, and where an order is carried out; of
grains that were never in trouble nothing is kept, and no call is slower for it. Plain code without a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from silo.directory.addresses import GrainId
from silo.grain_records import Fate, Transition

TRANSITIONS_MAX: Final = 20
"""How many transitions of one grain are kept; the oldest go first."""
GRAINS_MAX: Final = 4096
"""Of how many grains any are kept; the one that changed longest ago is forgotten first. With the bounds on each that
makes 50 MB at the very worst, and less than one as a rule."""
WHY_CHARS_MAX: Final = 400
"""How much of a reason is kept."""


class _Noted:
    """One transition: what, why, and when it last came to that."""

    __slots__ = ("at", "fate", "times", "why")

    def __init__(self, fate: Fate, why: str, at: float | None) -> None:
        self.fate = fate
        self.why = why
        self.times = 1
        self.at = at


class Chronicle:
    """The last transitions of the grains that one silo takes note of."""

    def __init__(self) -> None:
        self._noted: OrderedDict[GrainId, list[_Noted]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._noted)

    def __contains__(self, grain: object) -> bool:
        return grain in self._noted

    def note(self, grain: GrainId, fate: Fate, why: str, now: float | None) -> None:
        """Take note of the grain from now on. What repeats itself is one transition, by its last reason.

        Args:
            now: the time of the loop; None for what was before this silo took note.
        """
        known = self._noted.get(grain)
        if known is None:
            known = self._noted[grain] = []
            if len(self._noted) > GRAINS_MAX:
                self._noted.popitem(last=False)
        else:
            self._noted.move_to_end(grain)
        why = why[:WHY_CHARS_MAX]
        if known and known[-1].fate is fate:
            last = known[-1]
            last.why, last.at, last.times = why, now, last.times + 1
            return
        known.append(_Noted(fate, why, now))
        del known[:-TRANSITIONS_MAX]

    def go_on(self, grain: GrainId, fate: Fate, why: str, now: float) -> None:
        """Likewise, but only of a grain that was noted before."""
        if grain in self._noted:
            self.note(grain, fate, why, now)

    def of(self, grain: GrainId, now: float) -> tuple[Transition, ...]:
        """Its transitions, the oldest first."""
        return tuple(
            Transition(each.fate, each.why, each.times, None if each.at is None else max(0.0, now - each.at))
            for each in self._noted.get(grain, ())
        )
