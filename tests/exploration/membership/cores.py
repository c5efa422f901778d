"""The real lease core and the real membership table, made to stand in any state that the exploration is in.

Time is in ticks, and now is always 0: an age of 3 is the time -3. One silo is the victim, the others are its peers.
What peers know of each other does not matter, since all that they promise names the victim only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from silo.directory.addresses import SiloAddress
from silo.directory.lease import LeaseCore, Phase
from silo.directory.lease_events import Event, Order, Ticked
from silo.directory.lease_observations import Observation, Observations
from silo.directory.lease_promises import Binding
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import SiloInfo, SiloRow, SiloStatus, Table, Verdict, View, others_at
from silo.directory.memory_membership import MemoryMembershipTable

VICTIM = SiloAddress("victim:1", 1)
STRANGER = SiloAddress("stranger:1", 1)
"""Who asks for assents where it does not matter who."""
PEERS = tuple(SiloAddress(f"peer-{number}:1", 1) for number in range(8))
INFO = {silo: SiloInfo(silo.endpoint) for silo in (VICTIM, *PEERS)}
VERSION = 10
"""Of the oldest view that is kept; it is member number 0."""
RUN, RUN_NEXT, TABLE_NEXT = "run-0/table-0", "run-1/table-0", "run-0/table-1"
"""The run of the store and the table in it; after a failover; after the table was lost."""
SEQ = 5
"""Of the victim's row, whenever nothing is under way: renewals only change whether others have seen the newest."""


class Ticks(LeaseSettings):
    """Settings in ticks. The margin is one tick, and there only where clocks drift."""

    __slots__ = ()
    margin = 0

    @property
    def renew_every_s(self) -> float:
        """No judge waits for another: all may be the first."""
        return 0.0

    @property
    def gap_s(self) -> float:
        return 1.0

    @property
    def wait_s(self) -> float:
        return self.lease_s + self.margin

    @property
    def wait_alone_s(self) -> float:
        return self.lease_s + self.grace_s + self.margin


class DriftTicks(Ticks):
    __slots__ = ()
    margin = 1


class OpenCore(LeaseCore):
    """A core that can be put into a state, and asked what it has come to."""

    def stand(self, me: SiloAddress, table: Table) -> None:
        """Be a member that has adopted this table."""
        self.phase = Phase.MEMBER
        self._me, self._info = me, INFO[me]
        self._row = next(row for row in table.rows if row.silo == me)
        self._table = table
        self.view = View(table)
        self._others = tuple(sorted(others_at(table, table.version, me)))
        self.observations.answered_at = 0.0

    def stand_renewed(self, age: int, acknowledged: Mapping[SiloAddress, int]) -> None:
        """Have this evidence."""
        self.evidence.renewed = -age
        self.evidence.acknowledged = {silo: -float(age) for silo, age in acknowledged.items()}
        self._renewal_at = -math.inf
        self._hold()
        self._orders.clear()

    def stand_promised(self, age: int, *, bound: Binding | None) -> None:
        """Have promised the victim this."""
        self.promises.acknowledged = {VICTIM: -float(age)}
        self.promises.bound = {VICTIM: bound} if bound is not None else {}

    def stand_observing(self, age: int, run: str, seq: int) -> None:
        """Have seen the victim's row stand still for this long."""
        self.observations = observing(self.observations, age, run, seq)

    def renewal(self) -> list[Order]:
        """What it orders when it is time to renew."""
        return self.on(Ticked(), 0.0)

    def told(self, event: Event) -> list[Order]:
        return self.on(event, 0.0)

    @property
    def adopted(self) -> int:
        """The number of the view that it holds."""
        return self._table.version - VERSION


def observing(observations: Observations, age: int, run: str, seq: int) -> Observations:
    """The same kind of observations, with the victim's row in them."""
    observations._observed = {VICTIM: Observation(run, seq, -float(age))}  # pyright: ignore[reportPrivateUsage] - it is what stands for a history
    observations.answered_at = 0.0
    return observations


class OpenTable(MemoryMembershipTable):
    """A table that can be put into a state."""

    def stand(self, table: Table) -> None:
        self._run, _, self._id = table.run.partition("/")
        self._run_seen = self._run
        self._version = table.version
        self._rows = {row.silo: row for row in table.rows}


def table_of(
    members: Sequence[int], *, views: int, declared: int, dead: bool = False, run: str = RUN, seq: int = SEQ
) -> Table:
    """The table whose newest view has the number `views - 1`.

    Args:
        members: of each peer, the views in which it is a member, as bits from the oldest view on.
        declared: the number of the view that the victim has declared; below 0 for none of this table.
        dead: whether the victim was declared dead, by the change after the newest view.
    """
    rows = [
        SiloRow(
            VICTIM,
            INFO[VICTIM],
            SiloStatus.DEAD if dead else SiloStatus.ACTIVE,
            seq=seq,
            seen=VERSION + declared if declared >= 0 else 0,
            joined=1,
            dead=VERSION + views if dead else None,
        )
    ]
    for number, member in enumerate(members):
        bits = member & ((1 << views) - 1)
        if not bits:
            continue  # not there yet, or gone from every view that counts
        first = (bits & -bits).bit_length() - 1
        last = bits.bit_length() - 1
        died = VERSION + last + 1 if last < views - 1 else None
        rows.append(
            SiloRow(
                PEERS[number],
                INFO[PEERS[number]],
                SiloStatus.ACTIVE if died is None else SiloStatus.DEAD,
                seq=1,
                seen=VERSION + views - 1,
                joined=VERSION + first if first else 1,
                dead=died,
            )
        )
    return Table(run, VERSION + views - 1 + dead, tuple(rows))


def verdict_in(table: Table) -> Verdict:
    """The verdict on the victim that could take effect in this table."""
    row = next(row for row in table.rows if row.silo == VICTIM)
    return Verdict(VICTIM, table.run, table.version, row.seq)
