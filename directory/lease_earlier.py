"""Until when silos of an earlier table are waited for: those that may still serve, though the store knows of none.

A store that was wiped cannot be told from a new one. Whoever served when that happened has renewed before this table
began, so S after it was first seen here, by the own clock, none of them holds a right any more. Whoever has seen it for
that long gives them up, be it the silo that began the table or another one.
"""

from __future__ import annotations

from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import EARLIER, Table, Verdict


class EarlierSilos:
    """For how long a table is known here to wait for silos of an earlier one."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self._waiting: tuple[str, float] | None = None
        """The run of the table, and when the first answer came that showed it waiting."""

    def take(self, table: Table, now: float) -> None:
        """Look at an answer that came just now."""
        if not table.awaits_earlier:
            self._waiting = None
        elif self._waiting is None or self._waiting[0] != table.run:
            self._waiting = table.run, now

    def verdict(self, table: Table, now: float) -> Verdict | None:
        """What gives them up, once they cannot serve any more; void in any other table, and in a later version."""
        if self._waiting is None or table.earlier is None or now < self._waiting[1] + self._settings.wait_alone_s:
            return None
        return Verdict(EARLIER, table.run, table.version, table.earlier.seq)
