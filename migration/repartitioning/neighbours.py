"""With whom the grains of a silo talk: for each grain a few peers, how much, and where they were last.

The messaging path says what it sees: every message between silos, since it is dear anyway and tells where the other end
is; of those within the silo about one in eight, which counts for eight. The gap to the next is drawn, for a fixed one
would fall in step with whoever calls eight others in turn, and always see the same one.

A message counts less as it ages, half after each half-life. To spare the path all arithmetic, newer ones count *more*
instead (forward decay; Cormode et al., ICDE 2009), and everything is divided by the weight of now when it is read. A
rate is corrected for the age of the acquaintance: a game that began ten seconds ago is as busy as its messages say, not
as a minute's average would.

Where a grain has more peers than are kept, another takes the place of the lightest with the probability that makes it
likely to be heavier (RAP; Ben Basat et al., INFOCOM 2017): a grain with thousands of peers costs little more per
message than one with three.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.messages import Neighbour, Neighbourhood
from silo.migration.repartitioning.settings import RepartitioningSettings

HALF_LIVES_MAX = 900
"""After so many half-lives weights are scaled back, long before they leave the range of a float."""
RATE_MIN = 1e-3
"""A peer with fewer messages than this per second is forgotten."""
EVICTION_TRIES = 16
"""How many grains are looked at for one that is well placed, when there are too many."""
SWEEPS_PER_LAP = 8
"""In how many periods every grain is looked at once for peers that have faded."""


class Tie(NamedTuple):
    """What a grain has to do with one peer."""

    peer: GrainId
    silo: SiloAddress
    rate: float
    age_s: float = 0.0
    """How long they have known each other."""


class _Peer:
    __slots__ = ("count", "mass", "silo", "since")

    def __init__(self, silo: SiloAddress, mass: float, since: float, count: int) -> None:
        self.silo = silo
        self.mass = mass
        self.since = since
        self.count = count


class _Row:
    __slots__ = ("floor", "is_crowded", "is_dirty", "peers", "since", "total")

    def __init__(self, since: float) -> None:
        self.peers: dict[GrainId, _Peer] = {}
        self.total = 0.0
        self.since = since
        self.floor = 0.0  # no peer is lighter
        self.is_dirty = False
        self.is_crowded = False


class NeighbourTable:
    """The peers of a silo's grains. `on_remote` and `on_local` are for the messaging path, and read no clock."""

    def __init__(self, me: SiloAddress, settings: RepartitioningSettings, rng: random.Random, now: float) -> None:
        self._me = me
        self._rng = rng
        self._rows: dict[GrainId, _Row] = {}
        self._dirty: list[GrainId] = []
        self._grains_max = settings.grains_max
        self._peers_max = settings.peers_max
        self._observations_min = settings.observations_min
        self._age_min_s = settings.age_min_s
        self._half_life_s = settings.half_life_s
        self._decay = math.log(2) / settings.half_life_s
        self._every = settings.local_every
        self._gap = settings.local_every
        self._origin = self._now = now
        self._weight = 1.0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, grain: object) -> bool:
        return grain in self._rows

    # -------------------------------------------------------------------------------------------- the messaging path

    def on_remote(self, grain: GrainId, peer: GrainId, silo: SiloAddress, count: int = 1) -> None:
        """A message between a grain here and one on another silo, whichever way it goes."""
        row = self._rows.get(grain)
        if row is None:
            row = self._admit(grain)
        if not row.is_dirty:
            row.is_dirty = True
            self._dirty.append(grain)
        weight = self._weight * count
        row.total += weight
        known = row.peers.get(peer)
        if known is None:
            self._meet(row, peer, silo, weight, count)
        else:
            known.mass += weight
            known.count += count
            known.silo = silo

    def on_local(self, one: GrainId, other: GrainId, count: int = 1) -> None:
        """A message between two grains of this silo."""
        self._gap -= count
        if self._gap <= 0:
            self._observe(one, other)

    def _observe(self, one: GrainId, other: GrainId) -> None:
        observed = 0
        while self._gap <= 0:
            observed += self._every
            self._gap += 1 + int(self._rng.random() * (2 * self._every - 1))  # local_every on average
        weight = self._weight * observed
        for grain, peer in ((one, other), (other, one)) if one != other else ():
            row = self._rows.get(grain)
            if row is None:
                row = self._admit(grain)
            row.total += weight
            known = row.peers.get(peer)
            if known is None:
                self._meet(row, peer, self._me, weight, observed)
            else:
                known.mass += weight
                known.count += observed
                known.silo = self._me

    def _meet(self, row: _Row, peer: GrainId, silo: SiloAddress, weight: float, count: int) -> None:
        if len(row.peers) < self._peers_max:
            row.floor = min(row.floor, weight) if row.peers else weight
            row.peers[peer] = _Peer(silo, weight, self._now, count)
            return
        row.is_crowded = True
        if self._rng.random() * (row.floor + weight) > weight:
            return
        # It takes over what the lightest has, which on average makes up for the messages that were passed over.
        lightest = min(row.peers, key=lambda each: row.peers[each].mass)
        known = row.peers.pop(lightest)
        row.peers[peer] = _Peer(silo, known.mass + weight, known.since, known.count + count)
        row.floor = min(each.mass for each in row.peers.values())

    def _admit(self, grain: GrainId) -> _Row:
        if len(self._rows) >= self._grains_max:
            self._evict()
        row = self._rows[grain] = _Row(self._now)
        return row

    def _evict(self) -> None:
        """Forget one grain: of the oldest the first without remote messages, which is well placed."""
        for _ in range(EVICTION_TRIES):
            grain = next(iter(self._rows))
            row = self._rows.pop(grain)
            if not row.is_dirty:
                return
            self._rows[grain] = row
        del self._rows[next(iter(self._rows))]

    # --------------------------------------------------------------------------------------------------- the planner

    def period(self, now: float) -> None:
        """Time has passed: what is observed from here on is of this moment. Once a second is often enough."""
        self._now = now
        self._weight = 2.0 ** ((now - self._origin) / self._half_life_s)
        if now - self._origin > HALF_LIVES_MAX * self._half_life_s:
            self._scale_back(now)

    def _scale_back(self, now: float) -> None:
        for row in self._rows.values():
            row.total /= self._weight
            row.floor /= self._weight
            for known in row.peers.values():
                known.mass /= self._weight
        self._origin, self._weight = now, 1.0

    def take_dirty(self, limit: int) -> list[GrainId]:
        """Grains that had remote messages since they were last taken, the longest waiting first."""
        taken: list[GrainId] = []
        at = 0
        for grain in self._dirty:
            if len(taken) == limit:
                break
            at += 1
            row = self._rows.get(grain)
            if row is not None and row.is_dirty:
                row.is_dirty = False
                taken.append(grain)
        del self._dirty[:at]
        return taken

    def soil(self, grain: GrainId) -> None:
        """Have a grain looked at though it had no remote messages: one that it talks to moves away."""
        row = self._rows.get(grain)
        if row is not None and not row.is_dirty:
            row.is_dirty = True
            self._dirty.append(grain)

    def ties(self, grain: GrainId) -> list[Tie]:
        """The peers of a grain that are known well enough, with their rates; none where it is not known."""
        row = self._rows.get(grain)
        if row is None:
            return []
        return [
            Tie(peer, known.silo, self._rate(known.mass, known.since), self._now - known.since)
            for peer, known in row.peers.items()
            if known.count >= self._observations_min
        ]

    def peers(self, grain: GrainId) -> tuple[GrainId, ...]:
        """The peers of a grain, however little is known of them."""
        row = self._rows.get(grain)
        return () if row is None else tuple(row.peers)

    def load(self, grain: GrainId) -> float:
        """The messages per second of a grain, peers that are not kept included."""
        row = self._rows.get(grain)
        return 0.0 if row is None else self._rate(row.total, row.since)

    def loads(self) -> dict[GrainId, float]:
        """The messages per second of every grain that is known."""
        return {grain: self._rate(row.total, row.since) for grain, row in self._rows.items()}

    def is_crowded(self, grain: GrainId) -> bool:
        """Whether the grain has had more peers than are kept, so that those that are change by chance."""
        row = self._rows.get(grain)
        return row is not None and row.is_crowded

    def _rate(self, mass: float, since: float) -> float:
        age = max(self._age_min_s, self._now - since)
        return mass / self._weight * self._decay / (1.0 - math.exp(-self._decay * age))

    def forget(self, grain: GrainId) -> None:
        """The grain is no longer here."""
        self._rows.pop(grain, None)

    def part(self, grain: GrainId, peer: GrainId) -> None:
        """This grain has nothing to do with that one any more."""
        row = self._rows.get(grain)
        if row is not None:
            row.peers.pop(peer, None)

    def sweep(self) -> None:
        """Forget what has faded, in an eighth of the grains; all of them in eight periods."""
        for _ in range(math.ceil(len(self._rows) / SWEEPS_PER_LAP)):
            grain = next(iter(self._rows))
            row = self._rows.pop(grain)
            faded = [peer for peer, known in row.peers.items() if known.mass * self._decay < RATE_MIN * self._weight]
            for peer in faded:
                del row.peers[peer]
            if row.peers:
                self._rows[grain] = row

    # ---------------------------------------------------------------------------------------------- grains that move

    def packed(self, grain: GrainId) -> Neighbourhood | None:
        """What is known of a grain's peers, for the silo that it moves to."""
        row = self._rows.get(grain)
        if row is None:
            return None
        return Neighbourhood(
            grain,
            row.total / self._weight,
            self._now - row.since,
            tuple(
                Neighbour(peer, known.silo, known.mass / self._weight, self._now - known.since, known.count)
                for peer, known in row.peers.items()
            ),
        )

    def unpack(self, came: Neighbourhood) -> None:
        """Take over what another silo knew, beside what has been seen here since."""
        row = self._rows.get(came.grain) or self._admit(came.grain)
        row.total += max(0.0, came.total) * self._weight
        row.since = min(row.since, self._now - max(0.0, came.age_s))
        for each in came.peers[: self._peers_max]:
            mass, since = max(0.0, each.mass) * self._weight, self._now - max(0.0, each.age_s)
            known = row.peers.get(each.peer)
            if known is not None:
                known.mass += mass
                known.count += each.count
                known.since = min(known.since, since)
            elif len(row.peers) < self._peers_max:
                row.peers[each.peer] = _Peer(each.silo, mass, since, each.count)
                row.floor = 0.0
        self.soil(came.grain)
