"""Which gateway a client's calls take: the silos that serve clients, and those of them that can be had now."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable

from silo.directory.addresses import GrainId, SiloAddress
from silo.messaging.link import Link
from silo.messaging.links import Links
from silo.routing.call import Call
from silo.routing.lanes import Lanes

GRAINS_MAX = 65_536
"""Of how many grains a client remembers which silo serves them."""


class GatewayChoice:
    """The gateways that a client knows, and among them the candidates: the links that new calls may take.

    Candidates are the links that are up, else those that may come up. Whoever changes something here calls `choose`
    when it is done. It also remembers which silos serve the grains that were called, as far as answers told. That is a
    hint, and may be old: a call that is sent to a silo that does not serve the grain goes on from there, as from any
    gateway.
    """

    def __init__(self, links: Links) -> None:
        self.version = 0
        """Of the view that was learnt last; 0 begins anew."""
        self.silos: list[SiloAddress] = []
        self.candidates: list[Link] = []
        self._links = links
        self._by_silo: dict[SiloAddress, Link] = {}
        self._served_by: dict[GrainId, SiloAddress] = {}
        self._going: set[SiloAddress] = set()
        self._attached = asyncio.Event()

    def learn(self, version: int, silos: Iterable[SiloAddress], dead: Iterable[SiloAddress]) -> bool:
        """Take in what a view says of gateways; False if a newer one was learnt before."""
        if version < self.version:
            return False
        self.version = version
        self.silos = sorted(silos)
        for silo in dead:
            self._links.end(silo, "it was declared dead")
        return True

    def add(self, silo: SiloAddress) -> bool:
        """A gateway has answered; whether that is news."""
        if silo in self.silos:
            return False
        self.silos.append(silo)
        return True

    def leaves(self, silo: SiloAddress) -> bool:
        """A gateway leaves the cluster, and never comes back as this incarnation; whether that is news."""
        if silo in self._going:
            return False
        self._going.add(silo)
        return True

    def lost(self, link: Link) -> None:
        """The link has ended. Its silo may be dialled anew with the next choice."""
        if link.peer.silo is not None:
            self._going.discard(link.peer.silo)
        self._set_candidates([each for each in self.candidates if each is not link])

    def serves(self, silo: SiloAddress, grain: GrainId) -> None:
        """An answer told that this gateway serves the grain; of too many, the one known longest is forgotten."""
        if len(self._served_by) >= GRAINS_MAX and grain not in self._served_by:
            del self._served_by[next(iter(self._served_by))]
        self._served_by[grain] = silo

    def choose(self) -> None:
        """Find the candidates anew."""
        links = [self._links.to(silo) for silo in self.silos if silo not in self._going]
        links = [link for link in links if link.ending is None]
        self._set_candidates([link for link in links if link.attached] or links)
        if self.is_reachable:
            self._attached.set()

    def _set_candidates(self, links: list[Link]) -> None:
        self.candidates = links
        self._by_silo = {link.peer.silo: link for link in links if link.peer.silo is not None}

    @property
    def is_reachable(self) -> bool:
        """Whether a candidate carries a link now."""
        return any(link.attached for link in self.candidates)

    async def reachable(self) -> None:
        """Wait until a candidate carries a link."""
        while not self.is_reachable:
            self._attached.clear()
            await self._attached.wait()

    def link_for(self, call: Call, lanes: Lanes) -> Link:
        """The silo that serves the grain, where that is known and a candidate, else the key's gateway.

        While earlier calls of the lane are out, theirs: by another it would have to wait.
        """
        candidates = self.candidates
        if len(candidates) == 1:
            return candidates[0]
        road = lanes.road_of(call)
        link = self._links.get(road) if road is not None else None
        if link is not None and link in candidates:
            return link
        silo = self._served_by.get(call.grain)
        link = self._by_silo.get(silo) if silo is not None else None
        return link or candidates[zlib.crc32(call.grain.key.encode()) % len(candidates)]
