"""Hub first: in each round every silo asks every other for places, for its hubs first and then for their leaves.

    a round of p:  look at the hubs among the grains that had remote messages;  Propose to each silo, in one message
                   q keeps places within its cap, its load and its budget;      Grant, or a little later, or not at all
                   p moves what was granted, and tells the silos of its peers where it will be (Announce)
                   leaf_delay_s later the same for leaves, by the places that were announced

Two grains that would each move to where the other is: the silo that is asked for a place keeps none while the one that
the guest comes for is itself on its way; and where both ask at once, the one with the smaller identity goes. Every
grain is asked for at one silo at a time. Rounds of different silos need not coincide.

A silo with far more than its share of the load sheds: the grains that lose least for the load that they take along, to
the silo with the least, which is how a few celebrities are spread that count alone would leave together.
"""

from __future__ import annotations

import random
from functools import partial

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.admission import budget
from silo.migration.repartitioning.choices import Choice, Places, affinities, choose_for_hub, choose_for_leaf, is_leaf
from silo.migration.repartitioning.exchange import Exchange, Expected, Leaving, Residents
from silo.migration.repartitioning.messages import (
    Decline,
    Grant,
    Message,
    Order,
    Proposal,
    Propose,
    Report,
    Send,
    Why,
)
from silo.migration.repartitioning.neighbours import Tie
from silo.migration.repartitioning.settings import RepartitioningSettings

SHED_LOOKED_AT_MAX = 200
"""How many of its busiest grains a silo with too much load looks at."""
ASKED_BUDGETS = 4
"""A silo asks for so many times what it may give in a period, since not all is granted."""


class HubFirst(Exchange):
    """The repartitioner of one silo, under `hub-first`."""

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
        self._round_at = now + settings.period_s * (1.0 + rng.random())
        self._leaves_at: float | None = None
        self._leaves: list[GrainId] = []
        self._given = 0  # in this period

    @property
    def next_at(self) -> float:
        due = self._round_at if self._leaves_at is None else min(self._round_at, self._leaves_at)
        return max(due, self._quiet_until)

    # ------------------------------------------------------------------------------------------------- as the source

    def _tick(self, now: float) -> list[Order]:
        self._take_stock()
        orders = self._grant_waiting(now)
        if now >= self._round_at:
            later = self._round_at + self._settings.period_s
            self._round_at = later if later > now else now + self._settings.period_s  # after a quiet time
            self._leaves_at = now + self._settings.leaf_delay_s
            orders += self._begin(now)
        elif self._leaves_at is not None and now >= self._leaves_at:
            self._leaves_at = None
            leaves, self._leaves = self._leaves, []
            orders += self._propose(leaves, now, Why.LEAF)
        return orders

    def _begin(self, now: float) -> list[Order]:
        """A round begins: the grains that had remote messages are looked at."""
        self._given = 0
        self.admission.begin_period()
        self.table.sweep()
        loads = self._measure()
        self._leaves.clear()
        return self._propose(self.table.take_dirty(self._settings.evaluations_max), now, Why.HUB, loads)

    def _places(self, now: float) -> Places:
        mean = self.shares.count_per_capacity()
        targets = set(self.shares.fresh(now))
        reports = {silo: report for silo in (self.me, *targets) if (report := self.shares.known(silo)) is not None}
        return Places(
            self.me,
            targets,
            {silo: float(report.count) for silo, report in reports.items()},
            {silo: self.shares.cap(report.capacity, mean) for silo, report in reports.items()},
            {grain: place for grain, (place, _) in self._announced.items()},
        )

    def _propose(
        self, grains: list[GrainId], now: float, phase: Why, loads: dict[GrainId, float] | None = None
    ) -> list[Order]:
        if self.shares.is_alone or not self._may_leave():
            return []
        places = self._places(now)
        asked: dict[SiloAddress, list[Proposal]] = {}
        if loads is not None:
            self._shed(loads, places, asked, now)
        wanted: list[tuple[Choice, GrainId, list[Tie]]] = []
        for grain in grains:
            if (found := self._wanted(grain, places, now, phase)) is not None:
                choice, ties = found
                places.planned(choice.target)
                wanted.append((choice, grain, ties))
        wanted.sort(key=lambda each: -each[0].gain)
        for choice, grain, ties in wanted[: self._asked_max()]:
            asked.setdefault(choice.target, []).append(self._ask(grain, choice, ties, now, places))
        return [Send(target, Propose(tuple(proposals), self.shares.own)) for target, proposals in asked.items()]

    def _asked_max(self) -> int | None:
        share = self._settings.budget_share
        return None if share is None else ASKED_BUDGETS * budget(share, self.admission.count_now)

    def _wanted(self, grain: GrainId, places: Places, now: float, phase: Why) -> tuple[Choice, list[Tie]] | None:
        """Where the grain would rather be, and by which ties."""
        if grain in self._leaving:
            return None
        if not self.table.is_crowded(grain):
            self.book.compare(grain, self.table.peers(grain))
        if not self.book.may_move(grain, now):
            return None
        ties = self.table.ties(grain)
        if not ties:
            return None
        if is_leaf(ties) != (phase is Why.LEAF):
            if phase is Why.HUB:
                self._leaves.append(grain)
            else:
                self.table.soil(grain)
            return None
        cost_of = partial(self._cost_of, grain)
        if phase is Why.LEAF:
            choice = choose_for_leaf(ties, places, self._settings, cost_of)
        else:
            may_make_room = self.book.may_make_room(grain)
            choice = choose_for_hub(ties, places, self._settings, cost_of, may_make_room=may_make_room)
        return None if choice is None else (choice, ties)

    def _ask(self, grain: GrainId, choice: Choice, ties: list[Tie], now: float, places: Places) -> Proposal:
        """Ask for a place for the grain; until it is answered, it is asked for nowhere else."""
        heaviest = sorted(ties, key=lambda tie: -tie.rate)
        load = self.table.load(grain)
        self._leaving[grain] = Leaving(now + self._settings.period_s, choice, load, tuple(heaviest))
        towards = next((tie.peer for tie in heaviest if places.where(tie) == choice.target), None)
        record = self.book.packed(grain, [tie.peer for tie in heaviest], now)
        return Proposal(grain, choice.why, choice.gain, load, towards, record)

    def _shed(
        self, loads: dict[GrainId, float], places: Places, asked: dict[SiloAddress, list[Proposal]], now: float
    ) -> None:
        """Ask others to take load, where this silo has far too much."""
        own = self.shares.own
        fair = self.shares.load_per_capacity() * own.capacity
        if not own.load > (1.0 + self._settings.shed_above) * fair:
            return
        left = own.load - sum(each.load for each in self._leaving.values())  # they take their load along
        taking = {silo: report for silo in places.targets if (report := self.shares.known(silo)) is not None}
        for _, grain, ties in self._cheapest_first(loads, places, now):
            if left <= (1.0 + self._settings.load_slack) * fair:
                break
            load = loads[grain]
            fitting = [silo for silo in taking if places.counts[silo] < places.caps[silo]]
            target = min(fitting, key=lambda silo: (taking[silo].load / taking[silo].capacity, silo), default=None)
            if target is None:
                break
            after = taking[target].load + load
            if after / taking[target].capacity >= left / own.capacity or (cost := self._cost_of(grain)) is None:
                continue  # the other would then have more than this one has now
            affinity = affinities(ties, places)
            left -= load
            places.planned(target)
            taking[target] = Report(taking[target].count + 1, after, taking[target].capacity)
            choice = Choice(target, Why.LOAD, affinity.get(target, 0.0) - affinity[self.me], cost)
            asked.setdefault(target, []).append(self._ask(grain, choice, ties, now, places))

    def _cheapest_first(
        self, loads: dict[GrainId, float], places: Places, now: float
    ) -> list[tuple[float, GrainId, list[Tie]]]:
        """The busiest grains that may move, those first that have the least to do here for the load that they are."""
        found: list[tuple[float, GrainId, list[Tie]]] = []
        for grain in sorted(loads, key=lambda each: -loads[each])[:SHED_LOOKED_AT_MAX]:
            if loads[grain] > 0 and grain not in self._leaving and self.book.may_move(grain, now):
                ties = self.table.ties(grain)
                if ties:
                    here = affinities(ties, places)[self.me] / sum(tie.rate for tie in ties)
                    found.append((here, grain, ties))
        found.sort(key=lambda each: each[:2])
        return found

    def expected(self, now: float) -> Expected:
        """What this silo would ask for now, were all its grains looked at; nothing is asked, and nothing changes."""
        self._measure()
        if self.shares.is_alone:
            return Expected(0, 0.0, 0.0)
        places = self._places(now)
        kept, self._leaves = self._leaves, []
        grains = list(self.table.loads())
        found = [each for grain in grains if (each := self._wanted(grain, places, now, Why.HUB)) is not None]
        leaves, self._leaves = self._leaves, kept
        found += [each for grain in leaves if (each := self._wanted(grain, places, now, Why.LEAF)) is not None]
        return Expected(len(found), sum(each.gain for each, _ in found), sum(each.cost for each, _ in found))

    def _granted(self, silo: SiloAddress, grant: Grant, now: float) -> list[Order]:
        """Move what may come, as far as it still wants to and this silo may give it."""
        self.shares.heard(silo, grant.report, now)
        self._take_stock()
        orders: list[Order] = []
        declined: list[GrainId] = []
        for grain in grant.grains:
            leaving = self._leaving.get(grain)
            is_asked = leaving is not None and leaving.target == silo
            if leaving is None or not is_asked:
                declined.append(grain)
            elif leaving.is_moving:
                continue  # said twice
            elif not self._may_give(grain):
                declined.append(grain)
                del self._leaving[grain]
            else:
                self._given += 1
                orders += self._give(grain, leaving, now)
        if declined:
            orders.append(Send(silo, Decline(tuple(declined))))
        return orders

    def _give(self, grain: GrainId, leaving: Leaving, now: float) -> list[Order]:
        self._expect(grain, leaving.target, now)
        for tie in leaving.ties:
            self.table.soil(tie.peer)
            if tie.peer in self.table:
                self._leaves.append(tie.peer)
        return [
            self._order(grain, leaving, now),
            *self._announce(((grain, leaving.target),), leaving.ties),
        ]

    def _may_give(self, grain: GrainId) -> bool:
        share = self._settings.budget_share
        return (
            (share is None or self._given < budget(share, self.admission.count_now))
            and self._may_leave(self._moving())
            and self._residents.cost_of(grain) is not None
        )

    # ----------------------------------------------------------------------------------------------- as the receiver

    def _exchanged(self, silo: SiloAddress, message: Message, now: float) -> list[Order]:
        match message:
            case Propose():
                return self._proposed(silo, message, now)
            case Grant():
                return self._granted(silo, message, now)
            case _:
                return []  # of another strategy

    def _proposed(self, silo: SiloAddress, propose: Propose, now: float) -> list[Order]:
        self.shares.heard(silo, propose.report, now)
        if now < self._quiet_until:
            return []
        self._take_stock()
        granted = tuple(
            proposal.grain
            for proposal in propose.proposals
            if not self._is_crossed(silo, proposal) and self.admission.ask(silo, proposal, now)
        )
        return [Send(silo, Grant(granted, self.shares.own))] if granted else []

    def _is_crossed(self, silo: SiloAddress, proposal: Proposal) -> bool:
        """Whether the one that it comes for is itself on its way, or goes to it first."""
        if proposal.towards is None or proposal.why is Why.LOAD:
            return False
        host = self._leaving.get(proposal.towards)
        if host is None:
            return False
        return host.is_moving or (host.target == silo and proposal.towards < proposal.grain)

    def _grant_waiting(self, now: float) -> list[Order]:
        return [
            Send(silo, Grant(tuple(grains), self.shares.own))
            for silo, grains in self.admission.grant_waiting(now).items()
        ]
