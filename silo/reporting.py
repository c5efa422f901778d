"""What a silo says of itself: to operators who ask, to the other silos once per period, to its metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from silo.activation.catalog import Catalog
from silo.directory.addresses import SiloAddress
from silo.directory.errors import MembershipUnavailable
from silo.directory.membership import Membership, SiloRow
from silo.loads import Loads, is_full
from silo.management_values import MemberReport, SiloReport, spread_of
from silo.messaging.links import Links
from silo.messaging.permissions import Role
from silo.moving.moves import Moves
from silo.routing.book import CallBook
from silo.routing.router import Router

if TYPE_CHECKING:
    from silo.telemetry import Telemetry

FRESH_VIEW_TIMEOUT_S = 1.0
"""How long a report waits for a reading of the members before it goes by the last one."""
CAPACITY_TOLD_EVERY_S = 0.1
"""How often, at most, a silo says that it is full or has room again: at once, then what is true by the next time."""


class Reporter:
    """Reads what the parts of one silo know, and changes nothing.

    Args:
        on_room: told, as the other silos are, when this one was full and has room again.
    """

    def __init__(
        self,
        me: SiloAddress,
        cluster: str,
        *,
        membership: Membership,
        loads: Loads,
        links: Links,
        catalog: Catalog,
        moves: Moves,
        book: CallBook,
        router: Router,
        telemetry: Telemetry | None,
        on_room: Callable[[], None],
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._membership = membership
        self._loads = loads
        self._links = links
        self._catalog = catalog
        self._moves = moves
        self._book = book
        self._router = router
        self._telemetry = telemetry
        self._on_room = on_room
        self._is_closed = False
        self._said_full = False
        self._told_at = -CAPACITY_TOLD_EVERY_S
        self._to_tell: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._is_closed = True
        if self._to_tell is not None:
            self._to_tell.cancel()

    async def report(self) -> SiloReport:
        """What this silo says of itself and of the cluster; of the members as they are now, where that can be read."""
        with contextlib.suppress(MembershipUnavailable, TimeoutError):
            async with asyncio.timeout(FRESH_VIEW_TIMEOUT_S):
                await self._membership.refresh()
        view = self._membership.view
        kinds = Counter(activation.id.kind for activation in self._catalog)
        members = tuple(self._member(row) for row in view.living())
        return SiloReport(
            self._cluster,
            view.version,
            self._me,
            dict(sorted(kinds.items())),
            len(self._book) + self._router.arrived_count,
            self._moves.leaving_count,
            self._moves.arriving_count,
            members,
            view.table.awaits_earlier,
        )

    def _member(self, row: SiloRow) -> MemberReport:
        load, info = self._loads.report_of(row.silo), row.info
        return MemberReport(
            info.name,
            row.silo,
            row.status.name.lower(),
            load.activations if load is not None else None,
            round(load.lag_s, 4) if load is not None else None,
            info.app_version,
            info.kinds,
            info.meta,
            info.gateway,
            load.in_flight if load is not None else None,
            (load.in_flight_max or None) if load is not None else None,
            (load.activations_max or None) if load is not None else None,
            row.cordoned,
        )

    async def run(self) -> None:
        """Tell the other silos of this one's load, and the metrics of more, once per period."""
        while True:
            await self._loads.next_period()
            self._tell()
            if self._telemetry is not None:
                self._sample(self._telemetry)

    def _tell(self) -> None:
        report = self._loads.own_report()
        self._said_full = is_full(report)
        for link in self._links.all():
            if link.peer.role is Role.SILO and link.attached:
                link.send(report)

    def capacity_changed(self) -> None:
        """This silo has become full, or is about to have room again: that is told before long, and not each time."""
        if self._to_tell is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            at = max(loop.time(), self._told_at + CAPACITY_TOLD_EVERY_S)
            self._to_tell = loop.call_at(at, self._tell_capacity)

    def _tell_capacity(self) -> None:
        """Say it where it is news. Who has room now was full a moment ago, whatever was said of that."""
        self._to_tell = None
        now_full = is_full(self._loads.own_report())
        if now_full and self._said_full:
            return
        self._told_at = asyncio.get_running_loop().time()
        self._tell()
        if not now_full:
            self._on_room()

    def _sample(self, telemetry: Telemetry) -> None:
        view = self._membership.view
        loads = (self._loads.report_of(row.silo) for row in view.active())
        telemetry.sampled(
            lag_s=self._loads.lag_s,
            members=Counter(row.status for row in view.table.rows),
            spread=spread_of(load.activations for load in loads if load is not None),
            calls_open=len(self._book),
            moves_out=self._moves.leaving_count,
            moves_in=self._moves.arriving_count,
            activations_in_flight=self._catalog.places.in_flight,
            activations_waiting=self._catalog.places.waiting_count,
        )
