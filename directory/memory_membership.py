"""The membership table in memory: the twin of the one on Redis, for simulations and tests within one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec

from silo.directory.addresses import SiloAddress
from silo.directory.membership import (
    EARLIER,
    Advance,
    Bury,
    Cordon,
    Join,
    Read,
    Rejoin,
    Renew,
    SiloRow,
    SiloStatus,
    Table,
    TableAnswer,
    TableRequest,
    TableStatus,
    Verdict,
    earlier_row,
)

DEAD_ROWS_KEPT = 32
"""Dead rows that stay for whoever still hears from those silos; older ones go once every member has seen them dead."""
RUN_LEAP = 2**20
"""What a new run of the store adds to the version, since a failover may have lost changes: versions never go back."""

Hook = Callable[[TableRequest], None]


def _no_fault(_: TableRequest) -> None:
    """The store works."""


class MemoryMembershipTable:
    """A table that every silo of one process asks. All methods are for one thread.

    Args:
        before: called before a request is carried out; raises MembershipUnavailable to lose it on its way.
        after: called when it was carried out; raises MembershipUnavailable to lose the answer.
    """

    def __init__(self, *, before: Hook = _no_fault, after: Hook = _no_fault) -> None:
        self.before = before
        self.after = after
        self._runs = itertools.count(1)
        self._ids = itertools.count(1)
        self._births = itertools.count(1)
        self._id = ""
        self._run = f"memory-{next(self._runs)}"
        self._run_seen = self._run
        self._version = 0
        self._rows: dict[SiloAddress, SiloRow] = {}
        self._followers: list[Callable[[int], None]] = []

    def ask(self, request: TableRequest, timeout_s: float) -> TableAnswer:
        self.before(request)
        answer = self.carry_out(request)
        self.after(request)
        return answer

    def close(self) -> None:
        """Nothing to let go of."""

    def follow(self, on_version: Callable[[int], None]) -> Callable[[], None]:
        """Call back with each new version, in the middle of the request that made it; returns what ends it."""
        self._followers.append(on_version)
        return lambda: self._followers.remove(on_version)

    @property
    def table(self) -> Table:
        rows = sorted(self._silo_rows(), key=lambda row: (row.joined, row.silo))
        return Table(f"{self._run}/{self._id}", self._version, tuple(rows), self._rows.get(EARLIER))

    def _silo_rows(self) -> list[SiloRow]:
        return [row for silo, row in self._rows.items() if silo != EARLIER]

    def lose(self) -> None:
        """Forget everything, as a store does that was flushed or came back empty."""
        self._rows.clear()
        self._id, self._version = "", 0

    def copy(self) -> MemoryMembershipTable:
        """All of it as it is now: for `set_back`."""
        kept = MemoryMembershipTable()
        kept._id, kept._version, kept._rows = self._id, self._version, dict(self._rows)
        return kept

    def set_back(self, kept: MemoryMembershipTable) -> None:
        """Be again as it was, as a store that was given an earlier copy of its data."""
        self._id, self._version, self._rows = kept._id, kept._version, dict(kept._rows)

    def fail_over(self, rows_before: Table | None = None) -> None:
        """A new run of the store, which has lost the renewals since an older table, but no change of the view."""
        self._run = f"memory-{next(self._runs)}"
        for old in rows_before.rows if rows_before is not None else ():
            row = self._rows.get(old.silo)
            if row is not None and row.status is not SiloStatus.DEAD:
                self._rows[old.silo] = msgspec.structs.replace(row, seq=old.seq, seen=old.seen)

    def carry_out(self, request: TableRequest) -> TableAnswer:
        """Change the table as this request says, in one step, without the hooks."""
        version = self._version
        if self._run_seen != self._run:
            self._run_seen = self._run
            if self._version:
                self._version += RUN_LEAP
                self._begin_again()
        status = self._change(request)
        if self._version and not self._id:
            self._id = f"table-{next(self._ids)}"
        if self._version != version:
            self._prune()
            for follower in list(self._followers):
                follower(self._version)
        return TableAnswer(status, self.table)

    def _change(self, request: TableRequest) -> TableStatus:
        match request:
            case Join(silo, info, bootstrap):
                row = self._rows.get(silo)
                if row is not None:
                    # never OK: the lease of a joiner counts from when the join that made the row was sent
                    return TableStatus.DEAD if row.status is SiloStatus.DEAD else TableStatus.STALE
                if not bootstrap and not self._version:
                    self._rows[EARLIER] = earlier_row(f"earlier than birth-{next(self._births)}")
                version = self._next_version()
                self._rows[silo] = SiloRow(silo, info, SiloStatus.JOINING, seq=1, seen=version, joined=version)
            case Renew(silo, seen, prev, table):
                row = self._rows.get(silo)
                if row is not None and row.status is SiloStatus.DEAD:
                    return TableStatus.DEAD
                if table not in ("", self._id) or seen > self._version or (row is not None and row.seq < prev):
                    return TableStatus.LOST
                if row is None:
                    return TableStatus.DEAD
                if row.seq != prev:
                    return TableStatus.STALE
                self._rows[silo] = msgspec.structs.replace(row, seq=row.seq + 1, seen=max(row.seen, seen))
            case Rejoin(silo, info, status, known, cordoned):
                row = self._rows.get(silo)
                if row.status is SiloStatus.DEAD if row is not None else self._has_given_up(known):
                    return TableStatus.DEAD
                if row is not None and row.seq > 0 and self._id != known.id:
                    return TableStatus.STALE
                self._version = max(self._version, known.version) + 1
                if self._id == known.id:
                    self._begin_again()  # it has come back as it was earlier
                for brought in known.rows:
                    self._bring(brought)
                self._bring_earlier(known.earlier)
                self._rows[silo] = SiloRow(silo, info, status, seq=1, seen=0, joined=self._version, cordoned=cordoned)
            case Advance(silo, status):
                row = self._rows.get(silo)
                if row is None or row.status is SiloStatus.DEAD:
                    return TableStatus.DEAD
                if row.status < status < SiloStatus.DEAD:
                    self._rows[silo] = msgspec.structs.replace(row, status=status)
                    self._next_version()
            case Cordon(silo, info, cordoned, version):
                row = self._rows.get(silo)
                if row is None or row.status is SiloStatus.DEAD:
                    return TableStatus.DEAD
                if row.info == info and row.cordoned is cordoned:
                    return TableStatus.OK
                if row.info != info or version != self._version:
                    return TableStatus.STALE
                self._rows[silo] = msgspec.structs.replace(row, cordoned=cordoned)
                self._next_version()
            case Verdict(target, run, version, seq):
                row = self._rows.get(target)
                if (
                    row is None
                    or row.status is SiloStatus.DEAD
                    or (run, version, seq) != (self.table.run, self._version, row.seq)
                ):
                    return TableStatus.STALE
                self._bury(row)
            case Bury(target):
                row = self._rows.get(target)
                if row is not None and row.status is not SiloStatus.DEAD:
                    self._bury(row)
            case Read():
                pass
        return TableStatus.OK

    def _begin_again(self) -> None:
        """Another table begins with the rows of this one, as if somebody had brought them."""
        self._id = f"table-{next(self._ids)}"
        for silo, row in self._rows.items():
            if row.status is not SiloStatus.DEAD:
                self._rows[silo] = msgspec.structs.replace(row, seq=0, seen=0, joined=self._version)

    def _bring(self, brought: SiloRow) -> None:
        """Merge a row of a table that was lost."""
        row = self._rows.get(brought.silo)
        died = self._version if brought.dead is not None else None
        if row is None:
            joined = self._version
            self._rows[brought.silo] = msgspec.structs.replace(brought, seq=0, seen=0, joined=joined, dead=died)
        elif died is not None and row.dead is None:
            self._rows[brought.silo] = msgspec.structs.replace(row, status=SiloStatus.DEAD, dead=died)

    def _has_given_up(self, known: Table) -> bool:
        """Whether the silos of that table have been given up, as those that have not come back in time."""
        earlier = self._rows.get(EARLIER)
        if earlier is None or earlier.status is not SiloStatus.DEAD:
            return False
        return known.earlier is None or known.earlier.info != earlier.info

    def _bring_earlier(self, brought: SiloRow | None) -> None:
        """Somebody has come back: it is known now who was there, but for those whom that table awaited in its turn."""
        row = self._rows.get(EARLIER)
        if row is not None and row.status is SiloStatus.DEAD:
            return
        self._rows.pop(EARLIER, None)
        if brought is not None:
            self._bring(brought)

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _bury(self, row: SiloRow) -> None:
        self._rows[row.silo] = msgspec.structs.replace(row, status=SiloStatus.DEAD, dead=self._next_version())

    def _prune(self) -> None:
        """Remove the oldest dead rows beyond DEAD_ROWS_KEPT, but none that a living silo may not have seen dead."""
        rows = self._silo_rows()
        seen = min((row.seen for row in rows if row.status is not SiloStatus.DEAD), default=self._version)
        dead = sorted(((row.dead, row.silo) for row in rows if row.dead is not None), reverse=True)
        for died, silo in dead[DEAD_ROWS_KEPT:]:
            if died <= seen:
                del self._rows[silo]
