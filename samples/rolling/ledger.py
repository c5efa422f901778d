"""What one caller knows of its grain, held against what the grain remembers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from samples.rolling.meter import Reading


class Finding(enum.Enum):
    """What an answer says of all calls before it."""

    AS_EXPECTED = "each of them ran once"
    BEGAN_AGAIN = "the grain has started anew, as it may after a crash"
    LOST = "one that was answered has left no trace"
    REPEATED = "one has run twice"


@dataclass
class Ledger:
    """The calls of one caller to one grain, of which at most one is out at a time."""

    turns: int = 0
    """The grain's turns at the last answer."""
    last: int = 0
    """The number of the last call that was answered."""
    moves: int = 0
    """How often the grain had moved at the last answer."""
    open: set[int] = field(default_factory=set[int])
    """Calls whose outcome is unknown, and which the grain has not named yet."""
    may_still_run: int = 0
    """How many calls of unknown outcome are in no answer's count of turns."""

    def unknown(self, number: int) -> None:
        """This call may have run, may yet run, or may never."""
        self.open.add(number)
        self.may_still_run += 1

    def answered(self, number: int, reading: Reading, *, may_begin_again: bool = False) -> Finding:
        """Judge the answer to a call, and take it as known from now on.

        Args:
            may_begin_again: whether a crash may have cost the grain its memory since the last answer.
        """
        anew = reading.turns <= self.turns
        uncounted = reading.turns - 1 - (0 if anew else self.turns)
        known = {0 if anew else self.last} | self.open
        if anew and not may_begin_again:
            finding = Finding.LOST
        elif uncounted > self.may_still_run or reading.before >= number:
            finding = Finding.REPEATED
        elif reading.before not in known:
            finding = Finding.LOST
        else:
            finding = Finding.BEGAN_AGAIN if anew else Finding.AS_EXPECTED
        self.turns, self.last, self.moves = reading.turns, number, reading.moves
        self.may_still_run = max(0, self.may_still_run - uncounted)
        self.open.discard(reading.before)
        return finding
