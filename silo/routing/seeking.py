"""Who serves a grain, asked of the members: for as long as the directory cannot be asked, or has lost rows.

A silo that serves the grain says by which entry; that is as true as a cached one, and is corrected on use likewise.
That nobody has said so proves nothing: a silo may not have been heard, or be about to open it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from silo.activation.catalog import Catalog
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.membership import Membership
from silo.messaging.links import Links
from silo.wire.frames import Seek, SeekAnswer

ANSWERS_WITHIN_S: Final = 0.3
"""How long the members may take to answer; who has not by then is taken not to serve the grain."""
SILOS_ASKED_MAX: Final = 64
"""How many members are asked for one grain."""
SOUGHT_MAX: Final = 1_000
"""Grains that are sought at once; nobody is asked for one more."""


class Seeking:
    """The questions of this silo, and its answers to those of others."""

    def __init__(self, me: SiloAddress, catalog: Catalog, membership: Membership, links: Links) -> None:
        self._me = me
        self._catalog = catalog
        self._membership = membership
        self._links = links
        self._sought: dict[GrainId, tuple[asyncio.Future[Entry | None], set[SiloAddress]]] = {}
        """What is asked for, and the silos that have not answered."""

    async def seek(self, grain: GrainId) -> Entry | None:
        """The entry by which another member serves this grain; None if none says so within ANSWERS_WITHIN_S.

        One question at a time for each grain.
        """
        others = [row.silo for row in self._membership.view.others(self._me)][:SILOS_ASKED_MAX]
        if not others or (grain not in self._sought and len(self._sought) >= SOUGHT_MAX):
            return None
        if grain in self._sought:
            answer, _ = self._sought[grain]
            return await asyncio.shield(answer)
        answer = asyncio.get_running_loop().create_future()
        self._sought[grain] = answer, set(others)
        for silo in others:
            self._links.to(silo).send(Seek(grain))
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                return await asyncio.shield(answer)
        except TimeoutError:
            return None
        finally:
            del self._sought[grain]
            if not answer.done():
                answer.set_result(None)

    def on_frame(self, peer: SiloAddress, frame: Seek | SeekAnswer) -> None:
        """Another silo asks, or answers."""
        match frame:
            case Seek(grain):
                self._links.to(peer).send(SeekAnswer(grain, self._catalog.entry_of(grain)))
            case SeekAnswer(grain, entry):
                self._on_answer(peer, grain, entry)

    def _on_answer(self, peer: SiloAddress, grain: GrainId, entry: Entry | None) -> None:
        answer, unheard = self._sought.get(grain, (None, set[SiloAddress]()))
        unheard.discard(peer)
        if answer is None or answer.done():
            return
        if entry is not None and entry.silo != self._me:
            answer.set_result(entry)
        elif not unheard:
            answer.set_result(None)
