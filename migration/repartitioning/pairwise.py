"""Pairwise: the exchange published for ActOp (Newell et al., EuroSys 2016), kept as the baseline to compare with.

    p: to the partner with which it would win most: Offer, what p would give, with scores and edges
    q: refuses, if it has exchanged within the last period; p then asks the next best
       else chooses jointly from the offer and from what it would give in turn: Accept
    p: moves what q takes, and keeps places for what q gives: Confirm; q then moves it

The score of a grain is the messages that become local less those that stop being so. The joint choice is greedy: the
highest score of either side whose move keeps the two silos even; then its neighbours' scores change by twice what they
have with it. The difference of the two may not exceed the slack of the cap.

The rule is the paper's, the observation is not: its sketch of the heaviest edges of a server is here the table of
neighbours, whose places are newer and whose weights fade. That is kinder to it than its own.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.choices import Choice
from silo.migration.repartitioning.exchange import Exchange, Leaving, Residents
from silo.migration.repartitioning.messages import (
    Accept,
    Candidate,
    Confirm,
    Message,
    Offer,
    Order,
    Proposal,
    Refuse,
    Send,
    Why,
)
from silo.migration.repartitioning.settings import RepartitioningSettings


class Pairwise(Exchange):
    """The repartitioner of one silo, under `pairwise`."""

    def __init__(
        self,
        me: SiloAddress,
        settings: RepartitioningSettings,
        residents: Residents,
        rng: random.Random,
        now: float,
        capacity: float = 1.0,
    ) -> None:
        super().__init__(me, settings, residents, rng, now, capacity)
        self._next = now + settings.pairwise_period_s * rng.random()
        self._exchanged_at: float | None = None
        self._round = 0
        self._partners: list[SiloAddress] = []
        """Those that are yet to be asked in this round, the best last."""
        self._offered: dict[SiloAddress, tuple[int, dict[GrainId, Candidate]]] = {}
        self._owed: dict[SiloAddress, tuple[int, tuple[Candidate, ...]]] = {}
        """What goes to a partner once it confirms."""

    @property
    def next_at(self) -> float:
        return max(self._next, self._quiet_until)

    def _is_cooling(self, now: float) -> bool:
        return self._exchanged_at is not None and now - self._exchanged_at < self._settings.pairwise_period_s

    # ------------------------------------------------------------------------------------------------- as the source

    def _tick(self, now: float) -> list[Order]:
        if now < self._next:
            return []
        self._next = now + self._settings.pairwise_period_s
        self.admission.begin_period()
        self.table.sweep()
        self._measure()
        self._offered.clear()
        if self._is_cooling(now):
            return []
        scores = self._scores(now)
        self._partners = sorted(scores, key=lambda silo: (sum(scores[silo].values()), silo))
        return self._offer(now)

    def _offer(self, now: float) -> list[Order]:
        """Ask the best partner that has not been asked in this round."""
        if not self._partners or self._is_cooling(now):
            return []
        partner = self._partners.pop()
        candidates = self._candidates(self._scores(now).get(partner, {}), partner, now)
        if not candidates:
            return self._offer(now)
        self._round += 1
        self._offered = {partner: (self._round, {each.grain: each for each in candidates})}
        return [Send(partner, Offer(self._round, candidates, self.shares.own))]

    def _scores(self, now: float) -> dict[SiloAddress, dict[GrainId, float]]:
        """For each other silo the grains that would be better off there, and by how much."""
        fresh = set(self.shares.fresh(now))
        found: dict[SiloAddress, dict[GrainId, float]] = {}
        for grain in self.table.loads():
            if grain in self._leaving:
                continue
            rates: dict[SiloAddress, float] = {}
            for tie in self.table.ties(grain):
                place = self._announced.get(tie.peer)
                at = tie.silo if place is None else place[0]
                rates[at] = rates.get(at, 0.0) + tie.rate
            here = rates.pop(self.me, 0.0)
            for silo, rate in rates.items():
                if rate > here and silo in fresh:
                    found.setdefault(silo, {})[grain] = rate - here
        return found

    def _candidates(self, scores: Mapping[GrainId, float], partner: SiloAddress, now: float) -> tuple[Candidate, ...]:
        best = sorted(scores, key=lambda grain: (-scores[grain], grain))[: self._settings.candidates_max]
        found: list[Candidate] = []
        for grain in best:
            if not self.book.may_move(grain, now) or self._residents.cost_of(grain) is None:
                continue
            ties = self.table.ties(grain)
            heaviest = sorted(ties, key=lambda tie: -tie.rate)
            near = tuple((tie.peer, tie.rate) for tie in ties if tie.silo in (self.me, partner))
            record = self.book.packed(grain, [tie.peer for tie in heaviest], now)
            found.append(Candidate(grain, scores[grain], self.table.load(grain), near, record))
        return tuple(found)

    def _accepted(self, silo: SiloAddress, accept: Accept, now: float) -> list[Order]:
        number, offered = self._offered.pop(silo, (0, {}))
        if number != accept.round:
            return []
        self.shares.heard(silo, accept.report, now)
        self._take_stock()
        self._exchanged_at = now
        self._partners.clear()
        for each in accept.gives:
            self.admission.keep(silo, _proposal(each), now)
        orders = self._give([offered[grain] for grain in accept.takes if grain in offered], silo, now)
        return [*orders, Send(silo, Confirm(accept.round))]

    # ------------------------------------------------------------------------------------------------ as the partner

    def _exchanged(self, silo: SiloAddress, message: Message, now: float) -> list[Order]:
        match message:
            case Offer():
                return self._offered_by(silo, message, now)
            case Accept():
                return self._accepted(silo, message, now)
            case Confirm(number):
                owed, gives = self._owed.pop(silo, (0, ()))
                return self._give(gives, silo, now) if owed == number else []
            case Refuse(number):
                if self._offered.get(silo, (0, {}))[0] != number:
                    return []
                del self._offered[silo]
                return self._offer(now)
            case _:
                return []  # of another strategy

    def _offered_by(self, silo: SiloAddress, offer: Offer, now: float) -> list[Order]:
        self.shares.heard(silo, offer.report, now)
        if now < self._quiet_until or self._is_cooling(now):
            return [Send(silo, Refuse(offer.round))]
        self._take_stock()
        mine = self._candidates(self._scores(now).get(silo, {}), silo, now)
        slack = self._settings.cap_slack * self.shares.count_per_capacity()
        takes, gives = choose_jointly(
            {each.grain: each for each in offer.candidates},
            {each.grain: each for each in mine},
            offer.report.count,
            self.admission.count_now + self.admission.kept,
            lambda difference: difference <= slack,
        )
        self._exchanged_at = now
        self._offered.clear()
        self._partners.clear()
        for each in takes:
            self.admission.keep(silo, _proposal(each), now)
        self._owed = {silo: (offer.round, tuple(gives))}
        return [Send(silo, Accept(offer.round, tuple(each.grain for each in takes), tuple(gives), self.shares.own))]

    def _give(self, candidates: Sequence[Candidate], target: SiloAddress, now: float) -> list[Order]:
        orders: list[Order] = []
        for each in candidates:
            cost = self._cost_of(each.grain)
            if cost is None or each.grain in self._leaving:
                continue
            ties = tuple(sorted(self.table.ties(each.grain), key=lambda tie: -tie.rate))
            choice = Choice(target, Why.PAIR, each.score, cost)
            leaving = self._leaving[each.grain] = Leaving(now, choice, each.load, ties)
            orders.append(self._order(each.grain, leaving, now))
        return orders


def _proposal(candidate: Candidate) -> Proposal:
    return Proposal(candidate.grain, Why.PAIR, candidate.score, candidate.load, None, candidate.record)


def choose_jointly(
    theirs: Mapping[GrainId, Candidate],
    mine: Mapping[GrainId, Candidate],
    their_count: int,
    my_count: int,
    is_even: Callable[[int], bool],
) -> tuple[list[Candidate], list[Candidate]]:
    """Which of theirs come, and which of mine go: the greedy joint choice of the paper."""
    sides = ({grain: each.score for grain, each in theirs.items()}, {grain: each.score for grain, each in mine.items()})
    known = ({**theirs}, {**mine})
    heaps = [[(-score, grain) for grain, score in side.items()] for side in sides]
    for heap in heaps:
        heapq.heapify(heap)
    chosen: tuple[list[Candidate], list[Candidate]] = ([], [])
    difference = my_count - their_count
    while True:
        tops = [_top(heap, side) for heap, side in zip(heaps, sides, strict=True)]
        order = sorted((0, 1), key=lambda which: -tops[which][0])
        for which in order:
            score, grain = tops[which]
            after = difference + (2 if which == 0 else -2)
            if grain is None or score <= 0 or not (abs(after) < abs(difference) or is_even(abs(after))):
                continue
            difference = after
            del sides[which][grain]
            chosen[which].append(known[which][grain])
            for peer, rate in known[which][grain].peers:
                for other in (0, 1):
                    if peer in sides[other]:
                        sides[other][peer] += 2 * rate if other == which else -2 * rate
                        heapq.heappush(heaps[other], (-sides[other][peer], peer))
            break
        else:
            return chosen


def _top(heap: list[tuple[float, GrainId]], side: Mapping[GrainId, float]) -> tuple[float, GrainId | None]:
    """The highest score that still holds."""
    while heap and side.get(heap[0][1]) != -heap[0][0]:
        heapq.heappop(heap)
    return (-heap[0][0], heap[0][1]) if heap else (0.0, None)
