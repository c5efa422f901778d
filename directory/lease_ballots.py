"""Who has assented to which verdict, and whether that is enough: the majority of rule R7.

The target of a verdict may hold any view from the one that it has declared to the newest. In each of them that has
other members, strictly more than half of these must have assented: then, whichever view the target holds, too few are
left to acknowledge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from silo.directory.addresses import SiloAddress
from silo.directory.membership import Table, Verdict, others_at


def views_held(table: Table, target: SiloAddress) -> Iterator[frozenset[SiloAddress]]:
    """The other members in each view that the target may hold; each change once, since versions may leap."""
    row = next((row for row in table.rows if row.silo == target), None)
    if row is None:
        return
    changes = {change for each in table.rows for change in (each.joined, each.dead) if change is not None}
    for version in sorted({row.seen, *(change for change in changes if row.seen < change <= table.version)}):
        yield others_at(table, version, target)


class Ballots:
    """The assents that one coordinator has gathered, for each target to the newest verdict only."""

    def __init__(self) -> None:
        self._verdicts: dict[SiloAddress, Verdict] = {}
        self._assents: dict[SiloAddress, set[SiloAddress]] = {}

    def open(self, verdict: Verdict) -> None:
        """Gather assents to this verdict; those to an earlier one on the same silo are void."""
        if not self.is_open(verdict):
            self._assents[verdict.target] = set()
        self._verdicts[verdict.target] = verdict

    def is_open(self, verdict: Verdict) -> bool:
        return self._verdicts.get(verdict.target) == verdict

    def close_all_but(self, targets: Iterable[SiloAddress]) -> None:
        kept = set(targets)
        for target in [target for target in self._verdicts if target not in kept]:
            del self._verdicts[target], self._assents[target]

    def add(self, silo: SiloAddress, verdict: Verdict) -> None:
        """Count an assent, if it is to the verdict that is open."""
        if self.is_open(verdict):
            self._assents[verdict.target].add(silo)

    def missing(self, verdict: Verdict, table: Table) -> set[SiloAddress]:
        """Whom to ask: the members of every view that the target may hold, but those who have assented."""
        electors: set[SiloAddress] = set()
        return electors.union(*views_held(table, verdict.target)) - self._assents.get(verdict.target, set())

    def is_carried(self, verdict: Verdict, table: Table) -> bool:
        """Whether the verdict has its majority in every view; one without other members asks for none.

        A target that has declared no view of this table may hold one of a table that was lost: then no majority is
        known to be one. That somebody is a member besides it is for the caller to know.
        """
        assents = self._assents.get(verdict.target, set())
        declared = any(row.silo == verdict.target and row.seen > 0 for row in table.rows)
        return (
            declared
            and self.is_open(verdict)
            and all(
                self.is_majority(len(others & assents), len(others))
                for others in views_held(table, verdict.target)
                if others
            )
        )

    def is_majority(self, assents: int, others: int) -> bool:
        return 2 * assents > others
