"""Who is in the cluster: rows, tables, views, and the contract of the membership table.

The table is one versioned value. A row's status only moves forward: joining, active, leaving, dead; dead is final.
Every change is a compare-and-set that takes the next version. `run` names the run of the store, so that a failover that
lost renewals is seen.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from silo.directory.addresses import SiloAddress


class SiloStatus(enum.IntEnum):
    """The states of a silo, in the only order in which it passes through them."""

    JOINING = 0
    ACTIVE = 1
    LEAVING = 2
    DEAD = 3


class ProcessIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Which operating system process a silo is: enough for a neighbour on the same machine to prove its death.

    `machine` joins boot id, pid namespace and time namespace; `start_ticks` is the start time of field 22 of
    `/proc/PID/stat`.
    """

    machine: str
    pid: int
    start_ticks: int


class SiloInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a silo says of itself when it joins; it never changes afterwards."""

    name: str
    kinds: tuple[str, ...] = ()
    """The grain kinds it hosts."""
    meta: dict[str, str] = {}
    gateway: bool = True
    app_version: str = ""
    process: ProcessIdentity | None = None
    lease_endpoint: str = ""
    """Where its lease listens for the leases of others; empty if nowhere."""


class SiloRow(msgspec.Struct, frozen=True, array_like=True):
    """One silo incarnation in the membership table."""

    silo: SiloAddress
    info: SiloInfo
    status: SiloStatus
    seq: int
    """Counts its renewals."""
    seen: int
    """The newest table version that it has declared to have adopted; 0 while it has adopted none of this table, since
    others brought its row when the table before was lost."""
    joined: int
    dead: int | None = None
    """The version that declared it dead, or None."""
    cordoned: bool = False
    """Whether an operator has said that it takes no new placements. It serves what it has."""


EARLIER: Final = SiloAddress("earlier:0", 0)
"""Stands in the store for the silos of a table that may have been lost before this one began. It names none of them."""


def earlier_row(name: str) -> SiloRow:
    """What stands for them in a table that begins; the name tells which table gives them up, should none come back."""
    return SiloRow(EARLIER, SiloInfo(name, gateway=False), SiloStatus.JOINING, seq=0, seen=0, joined=1)


def table_id(run: str) -> str:
    """The id of the table in the run of a store, as `Table.run` joins them."""
    return run.partition("/")[2]


class Table(msgspec.Struct, frozen=True, array_like=True):
    """The whole membership table as one answer of the store showed it."""

    run: str
    """The run of the store, and after a slash the id of the table in it."""
    version: int
    rows: tuple[SiloRow, ...] = ()
    earlier: SiloRow | None = None
    """What stands for the silos of a table that may have been lost before this one began. While it is alive, they are
    waited for; dead, they have been given up, so that one of them which comes back is dead. None where the table was
    founded as the first of its cluster, or silos of the lost one have come back and brought their rows."""

    @property
    def id(self) -> str:
        """Tells this table from one that was lost; empty as long as nothing was written."""
        return table_id(self.run)

    @property
    def awaits_earlier(self) -> bool:
        """Whether silos may still serve by a table that was lost, and none of them has come back yet."""
        return self.earlier is not None and self.earlier.dead is None


def members_at(table: Table, version: int) -> frozenset[SiloAddress]:
    """Who was a member in that version; rows that were removed since were members of none that anybody may hold."""
    return frozenset(
        row.silo for row in table.rows if row.joined <= version and (row.dead is None or row.dead > version)
    )


def others_at(table: Table, version: int, silo: SiloAddress) -> frozenset[SiloAddress]:
    """Likewise, without this silo."""
    return members_at(table, version) - {silo}


class View:
    """The cluster's members as one table version shows them; immutable."""

    __slots__ = ("_by_address", "_by_name", "dead", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self._by_address = {row.silo: row for row in table.rows}
        self._by_name = {row.info.name: row for row in table.rows if row.status is not SiloStatus.DEAD}
        self.dead = frozenset(row.silo for row in table.rows if row.status is SiloStatus.DEAD)
        """Those that this version declares dead."""

    @property
    def version(self) -> int:
        return self.table.version

    def row(self, silo: SiloAddress) -> SiloRow | None:
        return self._by_address.get(silo)

    def named(self, name: str) -> SiloRow | None:
        """The living silo of this name, endpoint, or full address."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        return next((row for row in self.living() if name in (row.silo.endpoint, str(row.silo))), None)

    def is_alive(self, silo: SiloAddress) -> bool:
        """Whether this version has the silo among its members; one that it does not know is not alive."""
        row = self._by_address.get(silo)
        return row is not None and row.status is not SiloStatus.DEAD

    def is_dead(self, silo: SiloAddress) -> bool:
        """Whether this version declares the silo dead; one that it does not know may have joined later."""
        return silo in self.dead

    def living(self) -> tuple[SiloRow, ...]:
        return tuple(row for row in self.table.rows if row.status is not SiloStatus.DEAD)

    def active(self) -> tuple[SiloRow, ...]:
        return tuple(row for row in self.table.rows if row.status is SiloStatus.ACTIVE)

    def takes_placements(self, silo: SiloAddress) -> bool:
        """Whether new activations may land there: it is active, and not cordoned."""
        row = self._by_address.get(silo)
        return row is not None and row.status is SiloStatus.ACTIVE and not row.cordoned

    def gateways(self) -> tuple[SiloRow, ...]:
        return tuple(row for row in self.active() if row.info.gateway)

    @property
    def is_recovering(self) -> bool:
        """Whether the table before was lost, and some of its silos have not joined again yet: what they serve may be
        missing from a directory that was lost with it."""
        return self.table.awaits_earlier or any(row.seq == 0 for row in self.living())

    def others(self, me: SiloAddress) -> Iterable[SiloRow]:
        return (row for row in self.living() if row.silo != me)


EMPTY_VIEW = View(Table(run="", version=0))


class Join(msgspec.Struct, frozen=True):
    """Add a row as JOINING. Needs nobody's assent.

    A table that begins with it waits for silos that may still serve by an earlier one: the store may have been wiped,
    which it does not tell.
    """

    silo: SiloAddress
    info: SiloInfo
    bootstrap: bool = False
    """Whether there can be none, should a table begin with it: the silo is the first of a new cluster."""


class Renew(msgspec.Struct, frozen=True):
    """Extend the lease: `prev` must be the row's seq, so that only a silo that hears answers can renew.

    A table that is older than what the silo has seen of it has come back as it was earlier: it is lost.
    """

    silo: SiloAddress
    seen: int
    prev: int
    table: str = ""
    """The id of the table that was adopted; empty for any."""


class Rejoin(msgspec.Struct, frozen=True):
    """Add the own row to a table that knows nothing of the one before, and bring all that this one said.

    Where the known table stands itself, as it was earlier, another one begins with its rows. Who was dead stays dead;
    who was alive is brought as having declared nothing. It needs nobody's assent.

    With the rows of the table that was lost, nobody unknown is waited for any more; but those for whom that one waited
    still are. Who was given up, and has no row, is dead.
    """

    silo: SiloAddress
    info: SiloInfo
    status: SiloStatus
    known: Table
    cordoned: bool = False


class Advance(msgspec.Struct, frozen=True):
    """Move the own row forward to ACTIVE or LEAVING; behind that status already is no error."""

    silo: SiloAddress
    status: SiloStatus


class Cordon(msgspec.Struct, frozen=True):
    """Say in the own row whether the silo takes new placements, only if the version still stands as it was seen: a
    request that comes late undoes no later one. What is so already is no change, and no error."""

    silo: SiloAddress
    info: SiloInfo
    cordoned: bool
    version: int


class Verdict(msgspec.Struct, frozen=True):
    """Declare a silo dead, only if run, version and seq all still stand as the judge saw them."""

    target: SiloAddress
    run: str
    version: int
    seq: int


class Bury(msgspec.Struct, frozen=True):
    """Declare a silo dead without a vote: its own goodbye, or the proof that its process has ended."""

    target: SiloAddress
    because: str


class Read(msgspec.Struct, frozen=True):
    """Read the table; nothing changes."""


TableRequest = Join | Renew | Rejoin | Advance | Cordon | Verdict | Bury | Read


class TableStatus(enum.Enum):
    """What became of a request to the table."""

    OK = "ok"
    STALE = "stale"
    """A renewal with an old `prev`, a verdict or a cordon on facts that have moved, or a join that is there by an
    earlier try: nothing changed, look at the table."""
    DEAD = "dead"
    """The row of the asking silo is dead, or missing from the table that had it."""
    LOST = "lost"
    """The table that had the row of the asking silo is no more: nothing changed."""


class TableAnswer(msgspec.Struct, frozen=True):
    """The answer to any request: what became of it, and the whole table right after it, in one atomic step."""

    status: TableStatus
    table: Table


class MembershipTable(Protocol):
    """The seam to the membership store. Blocking: its only user is a thread of its own (or a simulation).

    Raises MembershipUnavailable when the store cannot be asked within the timeout; the request may then have been
    carried out.
    """

    def ask(self, request: TableRequest, timeout_s: float) -> TableAnswer: ...

    def close(self) -> None: ...


class TurnRight(Protocol):
    """The right to start turns: one number that the lease keeps up to date, one comparison to read it."""

    @property
    def clock(self) -> Callable[[], float]:
        """What tells the time that the deadline is in."""
        ...

    @property
    def deadline(self) -> float:
        """When it ends, as of now."""
        ...

    def is_held(self) -> bool:
        """Whether this silo may start a turn, or let anything take effect, right now: the deadline has not come."""
        ...

    async def held(self) -> None:
        """Wait until the right is held (again); raises SiloFenced once the silo was declared dead."""
        ...

    def is_leased(self) -> bool:
        """Whether the store has renewed the lease in time; without it others may still acknowledge the right."""
        ...

    async def unleased(self) -> None:
        """Wait until the lease has run out, be it only for now, and whatever others acknowledge."""
        ...

    async def leased(self) -> None:
        """Wait until the lease is renewed (again)."""
        ...


class Membership(Protocol):
    """What the runtime of one silo sees of the cluster. All methods are for the event loop's own thread."""

    @property
    def view(self) -> View: ...

    @property
    def right(self) -> TurnRight: ...

    def subscribe(self, on_view: Callable[[View], None]) -> Callable[[], None]:
        """Call back with each newer view; returns what ends the subscription."""
        ...

    def silence_s(self, silo: SiloAddress) -> float:
        """For how long the silo had not renewed its lease when the table last answered."""
        ...

    async def join(self, silo: SiloAddress, info: SiloInfo, *, bootstrap: bool = False) -> View:
        """Join the cluster, as its very first silo where that is said and the store has no table; see `Join`."""
        ...

    async def advance(self, status: SiloStatus) -> View: ...

    async def cordon(self, cordoned: bool) -> View:
        """Say in the own row whether this silo takes new placements; a later order takes the place of one that has not
        been carried out. It ends with this incarnation.

        Raises:
            MembershipUnavailable: it could not be written, or a later order came; it may have been written even so.
            SiloFenced: this silo is no member.
        """
        ...

    async def refresh(self) -> View:
        """A view read from the store by a request that was sent after this call; raises MembershipUnavailable."""
        ...

    def confirm(self, view: View) -> None:
        """The directory has confirmed what this silo serves, now that all members of this view have been heard.

        A right that is withheld since the table was lost is given again, if the view is of the table that is now.
        """
        ...

    async def goodbye(self) -> None:
        """Declare the own row dead, as the last act; the right to run ends first."""
        ...

    async def declared_dead(self) -> None:
        """Wait until the cluster has declared this silo dead."""
        ...

    async def close(self) -> None:
        """Stop renewing, without a goodbye."""
        ...
