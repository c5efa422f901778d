"""The sweeper: one silo clears away the directory rows of those that have died, for the grains that nobody calls."""

from __future__ import annotations

import asyncio

from silo.directory.addresses import SiloAddress, stable_hash
from silo.directory.contract import GrainDirectory
from silo.directory.errors import DirectoryUnavailable
from silo.directory.membership import Membership, SiloStatus, View
from silo.directory.registrar import Registrar
from silo.logs import get_logger

log = get_logger(__name__)

SWEEP_AFTER_S = 3.0
"""How long after a death the sweep begins: grains that are called are taken over first, and it is not in their way."""
SWEEP_RETRY_S = 5.0
"""How long after a sweep that failed the next one is tried."""


class Sweeper:
    """Removes the rows of dead silos, if this silo is the one elected for it by rendezvous over the active ones.

    Two that both believe to be elected do no harm: a row is removed only if it still is the very one that was read.
    """

    def __init__(
        self, me: SiloAddress, directory: GrainDirectory, registrar: Registrar, membership: Membership
    ) -> None:
        self._me = me
        self._directory = directory
        self._registrar = registrar
        self._membership = membership
        self._due: set[SiloAddress] = set()
        self._swept: set[SiloAddress] = set()
        self._run = ""
        self._work = asyncio.Event()

    def on_view(self, view: View) -> None:
        """Note who has died."""
        dead = {row.silo for row in view.table.rows if row.status is SiloStatus.DEAD}
        if view.table.run != self._run:  # rows that were removed may have come back with an earlier state of the store
            self._run, self._swept = view.table.run, set()
        self._swept &= dead
        self._due = dead - self._swept
        if self._due:
            self._work.set()

    def is_elected(self, view: View, dead: SiloAddress) -> bool:
        active = [row.silo for row in view.active()]
        return bool(active) and max(active, key=lambda silo: stable_hash(f"{silo} sweeps {dead}")) == self._me

    async def run(self) -> None:
        """Sweep whenever there is somebody to sweep after."""
        while True:
            await self._work.wait()
            await asyncio.sleep(SWEEP_AFTER_S)
            self._work.clear()
            for dead in sorted(self._due):
                if not self.is_elected(self._membership.view, dead):
                    continue  # with the next view it may be, should the elected one die before it has swept
                if await self._sweep(dead):
                    self._swept.add(dead)
                    self._due.discard(dead)
                else:
                    asyncio.get_running_loop().call_later(SWEEP_RETRY_S, self._work.set)

    async def _sweep(self, dead: SiloAddress) -> bool:
        removed = 0
        try:
            async for page in self._directory.entries(dead):
                removed += sum(await asyncio.gather(*(self._registrar.unregister(entry) for entry in page)))
        except DirectoryUnavailable as error:
            log.warning("sweep.failed", silo=str(dead), why=str(error))
            return False
        if removed:
            log.info("sweep.done", silo=str(dead), rows=removed)
        return True
