"""What a silo says of itself: to operators who ask, to the other silos once per period, to its metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from silo.activation.catalog import Catalog
from silo.directory.addresses import SiloAddress
from silo.directory.errors import MembershipUnavailable
from silo.directory.membership import Membership, SiloRow
from silo.loads import Loads
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


class Reporter:
    """Reads what the parts of one silo know, and changes nothing."""

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
            row.cordoned,
        )

    async def run(self) -> None:
        """Tell the other silos of this one's load, and the metrics of more, once per period."""
        while True:
            await self._loads.next_period()
            report = self._loads.own_report()
            if self._telemetry is not None:
                self._sample(self._telemetry)
            for link in self._links.all():
                if link.peer.role is Role.SILO and link.attached:
                    link.send(report)

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
        )
