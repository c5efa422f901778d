"""Faults planted in the rule, each with the smallest world in which it does harm: the exploration must find them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from silo.directory.contract import Claim, Standing
from silo.directory.memory_directory import DirectoryRows
from tests.exploration.settling.world import Bounds, Rules


class ClaimsOverwrite(DirectoryRows):
    """A claim is written whatever stands."""

    def claim(self, claim: Claim) -> Standing:
        for entry in claim.entries:
            self._rows.pop(entry.grain, None)
        return super().claim(claim)


class LivesOutlastTheRun(DirectoryRows):
    """A store that starts again goes on in the life that it had."""

    def restart(self) -> None:
        heads = [(head, head.life, head.is_settled) for head in self._heads]
        super().restart()
        for head, life, is_settled in heads:
            head.life, head.is_settled = life, is_settled


class SettledFromBirth(DirectoryRows):
    """A life begins settled."""

    def claim(self, claim: Claim) -> Standing:
        standing = super().claim(claim)
        self._heads[claim.bucket].is_settled = True
        return msgspec.structs.replace(standing, is_settled=True)


class NamedByTheClaim(DirectoryRows):
    """A life has the name that the claim brings, though that may be carried out twice."""

    def _begin_life(self, head: Any, claim: Claim) -> None:
        super()._begin_life(head, claim)
        head.life = claim.new_life


class WritesWhatWasUnheard(DirectoryRows):
    """What is brought by a silo that was not heard is written before all others have claimed again."""

    def claim(self, claim: Claim) -> Standing:
        standing = super().claim(claim)
        if claim.entries and not standing.entries and standing.life not in ("", claim.life):
            self._rows.update((entry.grain, entry) for entry in claim.entries if self._is_news(entry))
        return standing


@dataclass(frozen=True)
class Planted:
    """A fault, and a world in which it does harm."""

    rules: Rules
    bounds: Bounds


WIPED: Final = Bounds("wiped", wipes=1, registrations=2)
SET_BACK: Final = Bounds("set back", set_backs=1, registrations=2)
MOVED: Final = Bounds("wiped amid a move", wipes=1, begins="moved")
REPLACED: Final = Bounds("wiped when nobody knows any more that one is dead", wipes=1, begins="replaced")
TWICE: Final = Bounds("wiped, and a claim is carried out twice", wipes=1, begins="begun twice")
DIED: Final = Bounds("a claim lands when its silo is dead", wipes=1, begins="died")
ANSWERED: Final = Bounds("wiped while a registration is answered", wipes=1, registrations=2, begins="registered")
"""A part of `WIPED`, and so none of the worlds that are explored for themselves."""
FOUNDED: Final = Bounds("a new silo comes first to a wiped store", begins="wiped", newcomers=1, fences=1)
"""While the one that serves the grain is cut off; which comes back in time, or too late."""
OUTDONE: Final = Bounds("a new silo comes first, its epochs too low", begins="wiped", newcomers=1, fences=1, epoch=3)
FENCED: Final = Bounds("wiped while one is fenced", wipes=1, fences=1, begins="open")

WORLDS: Final = {
    bounds.name: bounds
    for bounds in (
        WIPED,
        SET_BACK,
        MOVED,
        FENCED,
        FOUNDED,
        OUTDONE,
        REPLACED,
        TWICE,
        DIED,
        Bounds("a new silo comes first, a claim late", begins="wiped", newcomers=1, fences=1, late=1),
        Bounds("a new silo comes first, and one crashes", begins="wiped", newcomers=1, fences=1, crashes=1),
        Bounds("a new silo comes first, answers lost", begins="wiped", newcomers=1, fences=1, answers_lost=1),
        Bounds("a new silo comes first where there were two", 3, begins="wiped", newcomers=1, fences=2),
        Bounds("two new silos come first", 3, begins="wiped", newcomers=2, fences=1),
        Bounds("wiped, answers lost", wipes=1, answers_lost=1, registrations=2),
        Bounds("wiped twice", wipes=2, registrations=2),
        Bounds("wiped amid moves", wipes=1, moves=2, begins="open"),
        Bounds("set back amid moves", set_backs=1, moves=1, begins="open"),
        Bounds("wiped and set back", wipes=1, set_backs=1, registrations=2),
        Bounds("wiped, and one crashes", wipes=1, crashes=1, begins="open"),
        Bounds("wiped, a claim late", wipes=1, late=1, begins="open"),
        Bounds("wiped amid a move, a claim late", wipes=1, late=1, begins="moved"),
        Bounds("wiped, a claim late, and one crashes", wipes=1, late=1, crashes=1, begins="open"),
        Bounds("wiped, a claim late, and the grain ends", wipes=1, late=1, ends=1, begins="open"),
        Bounds("wiped while one is fenced, a claim late", wipes=1, late=1, fences=1, begins="open"),
        Bounds("set back, a claim late", set_backs=1, late=1, begins="open"),
        Bounds("3 silos, wiped", 3, wipes=1, begins="open", registrations=2),
        Bounds("3 silos, wiped when nobody knows any more that one is dead", 3, wipes=1, begins="replaced"),
    )
}
"""The worlds that are explored."""
SMALL: Final = (WIPED.name, MOVED.name, REPLACED.name, TWICE.name, DIED.name, FOUNDED.name, OUTDONE.name)
"""Those that are explored whole within seconds; `make prove` explores the others, too."""

PLANTED: Final = {
    "a registration names no life": Planted(Rules(names_life=False), WIPED),
    "a life is settled from its birth": Planted(Rules(rows=SettledFromBirth), WIPED),
    "a silo hears itself alone": Planted(Rules(hears_all=False), WIPED),
    "missing silos are not waited for": Planted(Rules(awaits_recovery=False), WIPED),
    "an answer of a life that is over counts": Planted(Rules(drains=False, drops_late_answers=False), ANSWERED),
    "a life outlasts the run of its store": Planted(Rules(rows=LivesOutlastTheRun), SET_BACK),
    "a claim is written whatever stands": Planted(Rules(rows=ClaimsOverwrite), MOVED),
    "a life is named by the claim alone": Planted(Rules(rows=NamedByTheClaim), TWICE),
    "a claim counts in whatever life it finds": Planted(Rules(learns=False), TWICE),
    "so does one of a silo that is dead": Planted(Rules(learns=False), DIED),
    "what was unheard is written at once": Planted(Rules(rows=WritesWhatWasUnheard), DIED),
    "a fenced silo goes on as if nothing were": Planted(Rules(withholds=False), FENCED),
    "a silo that finds no table settles at once": Planted(Rules(awaits_earlier=False), FOUNDED),
    "those of the table before are given up too soon": Planted(Rules(awaits_their_end=False), FOUNDED),
    "who was given up comes back and claims": Planted(Rules(ends_the_given_up=False), OUTDONE),
    "a fenced silo goes by its first claim": Planted(Rules(checks=False), REPLACED),
}
