"""Who serves a grain, asked of the members: for as long as the directory cannot be asked, or has lost rows.

A silo that serves the grain says by which entry; that is as true as a cached one, and is corrected on use likewise.
That nobody has said so proves nothing: a silo may not have been heard, or be about to open it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
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
        self._sought: dict[GrainId, _Question] = {}

    async def seek(self, grain: GrainId) -> Entry | None:
        """The entry by which another member serves this grain; None if none says so within ANSWERS_WITHIN_S.

        One question at a time for each grain: whoever asks meanwhile waits for the same answer, and no longer.
        """
        question = self._sought.get(grain) or self._ask(grain)
        return None if question is None else await asyncio.shield(question.answer)

    def _ask(self, grain: GrainId) -> _Question | None:
        """Ask the members; None where there is nobody to ask, or too much is asked already."""
        others = [row.silo for row in self._membership.view.others(self._me)][:SILOS_ASKED_MAX]
        if not others or len(self._sought) >= SOUGHT_MAX:
            return None
        loop = asyncio.get_running_loop()
        over = loop.call_later(ANSWERS_WITHIN_S, self._answered, grain, None)
        question = self._sought[grain] = _Question(loop.create_future(), set(others), over)
        for silo in others:
            self._links.to(silo).send(Seek(grain))
        return question

    def on_frame(self, peer: SiloAddress, frame: Seek | SeekAnswer) -> None:
        """Another silo asks, or answers."""
        match frame:
            case Seek(grain):
                self._links.to(peer).send(SeekAnswer(grain, self._catalog.entry_of(grain)))
            case SeekAnswer(grain, entry):
                self._on_answer(peer, grain, entry)

    def _on_answer(self, peer: SiloAddress, grain: GrainId, entry: Entry | None) -> None:
        question = self._sought.get(grain)
        if question is None:
            return  # it comes late
        question.unheard.discard(peer)
        if entry is not None and entry.silo != self._me and not self._membership.view.is_dead(entry.silo):
            self._answered(grain, entry)
        elif not question.unheard:
            self._answered(grain, None)

    def _answered(self, grain: GrainId, entry: Entry | None) -> None:
        question = self._sought.pop(grain)
        question.over.cancel()
        question.answer.set_result(entry)


@dataclass(frozen=True, slots=True)
class _Question:
    """One grain that is asked for."""

    answer: asyncio.Future[Entry | None]
    unheard: set[SiloAddress]
    """Those that have not answered."""
    over: asyncio.TimerHandle
