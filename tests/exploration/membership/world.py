"""All that can befall one silo, the victim, and its peers: the states, and the steps from each.

Peers join and are removed at any moment, by whatever means, since that needs nobody's consent about the victim. Loss,
cuts in one direction, pauses and outages are the scheduler doing nothing. A verdict is followed to its end: what peers
acknowledge afterwards counts too. Peers whose states are alike are interchangeable.

Each step is taken by the real core or table: a state is made to stand, told one event, and read again. As the same
states of one silo come up over and over, each such answer is remembered.

What is left out makes for more behaviour, not less: whoever asks for an assent may do so at any time, every member is
the first judge, and members learn of changes at once, which is when they are free to acknowledge again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from silo.directory.lease_events import Answered, AskTable, Order, PeerSaid, Tell
from silo.directory.lease_messages import Acknowledgement, Assent, AssentAsked, Probe
from silo.directory.lease_promises import Binding
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import (
    Read,
    Rejoin,
    Renew,
    SiloStatus,
    Table,
    TableAnswer,
    TableStatus,
    Verdict,
    table_id,
)
from tests.exploration.explore import Part
from tests.exploration.membership.cores import (
    INFO,
    PEERS,
    RUN,
    RUN_NEXT,
    SEQ,
    STRANGER,
    TABLE_NEXT,
    VERSION,
    VICTIM,
    DriftTicks,
    OpenCore,
    OpenTable,
    Ticks,
    observing,
    table_of,
    verdict_in,
)

FREE, BOUND, KNOWING = 0, 1, 2
"""What a peer is about the victim: bound by an assent, or knowing that it is dead."""


@dataclass(frozen=True)
class Configuration:
    """How large the world is, and what may go wrong in it. Times are ticks."""

    name: str
    silos: int
    joiners: int = 0
    lease: int = 2
    grace: int = 2
    changes: int = 2
    """How many peers join or are removed."""
    drifts: bool = False
    """Whether the victim's clock may stand still for one tick in L+G+2."""
    delays: str = ""
    """What may be under way for some time: `a` acknowledgements, `r` answers to renewals, `q` renewals."""
    failovers: int = 0
    """How often the store fails over and loses the last renewal."""
    wipes: int = 0
    """How often the store loses the whole table."""


@dataclass(frozen=True)
class Parts:
    """The code under exploration; with planted bugs, or as it is."""

    core: type[OpenCore] = OpenCore
    table: type[OpenTable] = OpenTable
    ticks: type[Ticks] | None = None
    """Settings other than the usual ones."""


class Known(enum.IntEnum):
    """What a table that took the place of a lost one has of the victim, and the victim of it."""

    ALL = 0
    """As usual."""
    UNDECLARED = 1
    """It has joined again and knows it, and has declared no view yet."""
    UNANSWERED = 2
    """It has joined again and does not know it."""
    ASKED = 3
    """It knows that the table is another: its row was brought by a peer, or is not there."""
    BROUGHT = 4
    """It does not know yet."""


class Peer(Part, frozen=True, cache_hash=True, gc=False, order=True):
    """One peer, as far as it concerns the victim."""

    member: int
    """In which views it is a member, as bits from the oldest on."""
    promised: int
    """How long ago it acknowledged the victim; W for longer or never."""
    stance: int
    assented: bool
    """Whether those who judge count its assent."""
    evidence: int
    """How long ago the victim asked for the acknowledgement that it has from it; L for longer or never."""
    under_way: int
    """Likewise, of an acknowledgement that has not come yet; -1 for none."""


class Flight(Part, frozen=True, cache_hash=True, gc=False):
    """A renewal, or the answer to one, that is under way: when it was sent, and with which view."""

    age: int
    view: int


class State(Part, frozen=True, cache_hash=True, gc=False):
    """Everything, right now."""

    dead: int
    """Whether it was declared dead: 1 in this table, 2 in one that was lost, by peers that know it or have gone."""
    renewed: int
    """How long ago the victim sent the last renewal that was answered."""
    unchanged: int
    """For how long its row stands still, for whoever saw it first."""
    unchanged_before: int
    """For how long it had stood still before its last renewal, which a failover may lose."""
    held: int
    """The view that the victim holds."""
    declared: int
    """The view that the table has it declared."""
    views: int
    """How many views are kept."""
    answer: Flight | None
    request: Flight | None
    verdict: str
    """Whether a verdict is under way, and what has moved since it left."""
    known: Known
    born: int
    """The view with which the table begins, of which the victim has declared none yet."""
    drift: int
    failovers: int
    wipes: int
    changes: int
    peers: tuple[Peer, ...]


class World:
    """The steps of one configuration."""

    def __init__(self, configuration: Configuration, parts: Parts | None = None) -> None:
        self._of = configuration
        self._parts = parts or Parts()
        ticks = self._parts.ticks or (DriftTicks if configuration.drifts else Ticks)
        self._settings: LeaseSettings = ticks(lease_s=configuration.lease, grace_s=configuration.grace)
        margin = 1 if configuration.drifts else 0
        self._lease = configuration.lease
        self._wait = configuration.lease + margin
        self._longest = configuration.lease + configuration.grace + margin
        self._drift_every = configuration.lease + configuration.grace + 2
        # each answer of the real code, once
        self._renewed = cache(self._renew)
        self._carried_out = cache(self._carry_out)
        self._read = cache(self._read_view)
        self._come = cache(self._take_acknowledgement)
        self._acknowledged = cache(self._acknowledge)
        self._assented = cache(self._assent)
        self._judged = cache(self._judge)
        self._may_start = cache(self._may_start_turns)
        self._learnt = cache(self._learn)
        self._kept = cache(self._keep_assent)
        self._seen = cache(self._see)
        self._accepted = cache(self._accept_late)
        self._stays = cache(self._learn_of_loss)
        self._rejoined = cache(self._rejoin)
        self._rejoinable = cache(self._rejoin_dead)

    def first(self) -> State:
        """All silos are members; the victim has just renewed."""
        member = Peer(1, self._wait, FREE, False, self._lease, -1)
        joiner = member.but(member=0)
        peers = (member,) * (self._of.silos - 1) + (joiner,) * self._of.joiners
        before = 0 if self._of.failovers else self._longest
        drift = self._drift_every if self._of.drifts else 0
        return State(
            dead=0,
            renewed=0,
            unchanged=0,
            unchanged_before=before,
            held=0,
            declared=0,
            views=1,
            answer=None,
            request=None,
            verdict="",
            known=Known.ALL,
            born=0,
            drift=drift,
            failovers=0,
            wipes=0,
            changes=0,
            peers=tuple(sorted(peers)),
        )

    def violated(self, state: State) -> bool:
        """Whether the victim is dead and may start a turn."""
        if not state.dead:
            return False
        evidence = tuple((peer.member >> state.held & 1, peer.evidence) for peer in state.peers)
        return self._may_start(state.renewed, tuple(sorted(evidence)))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """What may happen next, and what comes of it."""
        yield "tick", self._tick(state, stands_still=False)
        if self._of.drifts and state.drift >= self._drift_every:
            yield "tick (the victim's clock stands still)", self._tick(state, stands_still=True)
        if state.known <= Known.UNDECLARED:
            yield from self._renewals(state)
        else:
            yield from self._rejoins(state)
        if state.wipes < self._of.wipes and state.known is Known.ALL:
            yield from self._wipes(state)
        if not state.dead and state.known is Known.ALL:
            for view in range(state.held + 1, state.views):
                held, renewed = self._read(state.renewed, state.held, view, self._members(state), state.declared)
                yield "the victim reads a newer view", _trimmed(state.but(held=held, renewed=renewed))
        if not state.dead and state.failovers < self._of.failovers:
            yield "the store fails over and loses the last renewal", self._fail_over(state)
        for number, peer in enumerate(state.peers):
            if number == 0 or peer != state.peers[number - 1]:  # of those that are alike, one
                yield from self._steps_of(state, number, peer)
        if not state.dead:
            yield from self._verdicts(state)
        if state.verdict and not state.dead and self._accepted(state.verdict):
            yield "the verdict comes late", state.but(dead=1, verdict="")

    # ---- time

    def _tick(self, state: State, *, stands_still: bool) -> State:
        later = 0 if stands_still else 1  # by the victim's clock
        peers = [
            peer.but(
                promised=min(peer.promised + 1, self._wait),
                evidence=min(peer.evidence + later, self._lease),
                under_way=-1 if not 0 <= peer.under_way + later < self._lease else peer.under_way + later,
            )
            if peer.under_way >= 0
            else peer.but(promised=min(peer.promised + 1, self._wait), evidence=min(peer.evidence + later, self._lease))
            for peer in state.peers
        ]
        return _trimmed(
            state.but(
                renewed=min(state.renewed + later, self._lease + self._of.grace),
                unchanged=min(state.unchanged + 1, self._longest),
                unchanged_before=min(state.unchanged_before + 1, self._longest),
                answer=self._older(state.answer, later),
                request=self._older(state.request, later),
                drift=0 if stands_still else min(state.drift + 1, self._drift_every) if self._of.drifts else 0,
                peers=tuple(sorted(peers)),
            )
        )

    def _older(self, flight: Flight | None, later: int) -> Flight | None:
        if flight is None or flight.age + later >= self._lease + self._of.grace:
            return None  # nothing counts by it any more
        return flight.but(age=flight.age + later)

    # ---- the victim and the table

    def _renewals(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._renewal(state, Flight(0, state.held))
        if "q" in self._of.delays:
            if state.request is None:
                yield "a renewal is sent", _trimmed(state.but(request=Flight(0, state.held)))
            else:
                for label, after in self._renewal(state, state.request):
                    yield f"late, {label}", after
        if state.answer is not None:
            shown = (state.renewed, state.held, state.answer, self._members(state), state.declared)
            renewed, held = self._renewed(*shown)
            after = state.but(renewed=renewed, held=held, answer=None)
            yield "the answer to a renewal arrives", _trimmed(after)

    def _renewal(self, state: State, sent: Flight) -> Iterator[tuple[str, State]]:
        told = -1 if state.known else state.declared
        declared = self._carried_out(sent.view, told, state.views, self._members(state), state.dead == 1)
        if declared is None:
            return  # refused; to read that it is dead can only fence the victim
        after = self._moved(
            state.but(
                declared=declared,
                known=Known.ALL,
                born=0,
                unchanged=self._seen(state.unchanged, "seq"),
                unchanged_before=state.unchanged if state.failovers < self._of.failovers else self._longest,
                request=None,  # what else is under way names a seq that is over
            ),
            "seq",
        )
        answer = Flight(sent.age, state.views - 1)
        renewed, held = self._renewed(state.renewed, state.held, answer, self._members(state), declared)
        yield "a renewal is carried out and answered", _trimmed(after.but(renewed=renewed, held=held))
        if "r" in self._of.delays:
            yield "a renewal is carried out, its answer under way", _trimmed(after.but(answer=answer))
        else:
            yield "a renewal is carried out, its answer lost", _trimmed(after)

    def _fail_over(self, state: State) -> State:
        after = state.but(
            unchanged=self._seen(state.unchanged_before, "run"),
            unchanged_before=self._longest,
            failovers=state.failovers + 1,
        )
        return self._moved(after, "run")

    # ---- the table that is lost

    def _wipes(self, state: State) -> Iterator[tuple[str, State]]:
        """A new table begins with what some peer brings: the members of any view that is held somewhere."""
        for view in range(state.views):
            peers = tuple(
                peer.but(member=peer.member | (peer.member >> view & 1) << state.views) for peer in state.peers
            )
            if not any(peer.member >> state.views & 1 for peer in peers):
                continue  # nobody is left to bring anything
            after = state.but(
                views=state.views + 1,
                peers=peers,
                known=Known.BROUGHT,
                born=state.views,
                declared=state.held,  # for what is trimmed: the victim's own view is the oldest that counts
                unchanged=self._seen(state.unchanged, "table"),
                request=None,  # it names a table that is no more
                answer=None,
                dead=2 if state.dead else 0,
                wipes=state.wipes + 1,
            )
            yield "the table is lost", _trimmed(self._moved(after, "table"))

    def _rejoins(self, state: State) -> Iterator[tuple[str, State]]:
        newest = state.views - 1
        if state.dead == 1 and state.known is not Known.BROUGHT:
            assert not self._rejoinable(), "the table tells it that it is dead"
            return
        match state.known:
            case Known.BROUGHT:
                evidence = tuple(sorted((peer.member >> state.held & 1, peer.evidence) for peer in state.peers))
                if self._stays(state.renewed, evidence):
                    yield "the victim learns that the table is lost", state.but(known=Known.ASKED)
            case Known.ASKED:
                after = self._moved(state.but(unchanged=self._seen(state.unchanged, "seq")), "seq")
                yield "the victim joins again, its answer lost", after.but(known=Known.UNANSWERED)
                known, renewed = Known.UNDECLARED, self._rejoined(state.renewed, False)
                yield (
                    "the victim joins again",
                    _trimmed(after.but(known=known, renewed=renewed, held=newest, declared=newest)),
                )
            case Known.UNANSWERED:
                known, renewed = Known.UNDECLARED, self._rejoined(state.renewed, True)
                yield (
                    "the victim joins again, and has before",
                    _trimmed(state.but(known=known, renewed=renewed, held=newest, declared=newest)),
                )
            case _:
                pass  # it renews as usual

    def _moved(self, state: State, what: str) -> State:
        """Something of the facts has moved that verdicts are bound to: members read it, and those who judge do."""
        newest = state.views - 1
        peers = [
            peer.but(
                stance=self._learnt(peer.stance, what) if peer.member >> newest & 1 else peer.stance,
                assented=peer.assented and self._kept(what),
            )
            for peer in state.peers
        ]
        verdict = state.verdict and f"{state.verdict} {what}"
        return state.but(
            peers=tuple(sorted(peers)) if not state.dead or what == "table" else state.peers,
            verdict=verdict if verdict and self._accepted(verdict) else "",
        )

    # ---- peers

    def _steps_of(self, state: State, number: int, peer: Peer) -> Iterator[tuple[str, State]]:
        newest = state.views - 1
        if peer.member:
            promised, acknowledges = self._acknowledged(peer.promised, peer.stance)
            heard = peer.but(promised=promised)
            if acknowledges and peer.member >> state.held & 1:
                yield "a peer acknowledges", _with(state, number, heard.but(evidence=self._evidence(0, peer)))
            if acknowledges and "a" in self._of.delays:
                yield "a peer acknowledges, under way", _with(state, number, heard.but(under_way=0))
        if peer.under_way >= 0 and peer.member >> state.held & 1:
            evidence = self._evidence(peer.under_way, peer)
            yield "an acknowledgement arrives", _with(state, number, peer.but(evidence=evidence, under_way=-1))
        if not state.dead and peer.member and not (peer.stance == BOUND and peer.assented):
            stance, assents = self._assented(peer.promised, peer.stance)
            if assents:
                yield "a peer assents", _with(state, number, peer.but(stance=stance, assented=True))
        if state.dead and peer.member >> newest & 1 and peer.stance != KNOWING:
            stance = self._learnt(peer.stance, "dead")
            yield "a peer reads the verdict", _with(state, number, peer.but(stance=stance))
        if state.changes < self._of.changes:
            if peer.member >> newest & 1:
                yield "a peer is removed", self._view_change(state, number, member=False)
            elif not peer.member:
                yield "a peer joins", self._view_change(state, number, member=True)

    def _view_change(self, state: State, changed: int, *, member: bool) -> State:
        newest = state.views - 1
        peers = tuple(
            peer.but(member=peer.member | (member if number == changed else peer.member >> newest & 1) << state.views)
            for number, peer in enumerate(state.peers)
        )
        after = state.but(views=state.views + 1, changes=state.changes + 1, peers=peers)
        return _trimmed(self._moved(after, "version") if not state.dead else after)

    def _verdicts(self, state: State) -> Iterator[tuple[str, State]]:
        newest = state.views - 1
        # of the views before its own beginning the table knows nothing
        assents = tuple((peer.member >> state.born << state.born, peer.assented) for peer in state.peers)
        for number, peer in enumerate(state.peers):
            if not peer.member >> newest & 1 or (number and peer == state.peers[number - 1]):
                continue
            declared = -1 if state.known else state.declared
            judged = self._judged(state.unchanged, number, peer.promised, peer.stance, assents, state.views, declared)
            if judged is not None:
                stance, assented = judged
                after = _with(state, number, peer.but(stance=stance, assented=assented))
                yield "a verdict is given", after.but(dead=1, verdict="")
                if not state.verdict and self._accepted("late seq"):
                    yield "a verdict is sent", after.but(verdict="late")

    # ---- what the real code says

    def _members(self, state: State) -> tuple[int, ...]:
        return tuple(peer.member for peer in state.peers)

    def _core(self) -> OpenCore:
        return self._parts.core(self._settings)

    def _table(self, table: Table) -> OpenTable:
        stood = self._parts.table()
        stood.stand(table)
        return stood

    def _carry_out(self, held: int, declared: int, views: int, members: tuple[int, ...], dead: bool) -> int | None:
        """Which view the table has the victim declared after a renewal; None where it refuses it."""
        table = self._table(table_of(members, views=views, declared=declared, dead=dead))
        victim = self._core()
        victim.stand(VICTIM, table_of(members, views=held + 1, declared=min(declared, held)))
        renewals = [order.request for order in victim.renewal() if isinstance(order, AskTable)]
        answer = table.carry_out(renewals[0])
        if answer.status is not TableStatus.OK:
            return None
        return next(row.seen for row in answer.table.rows if row.silo == VICTIM) - VERSION

    def _renew(
        self, renewed: int, held: int, answer: Flight, members: tuple[int, ...], declared: int
    ) -> tuple[int, int]:
        """How old the victim's renewal is, and which view it holds, once this answer has come."""
        victim = self._core()
        victim.stand(VICTIM, table_of(members, views=held + 1, declared=min(declared, held)))
        victim.stand_renewed(renewed, {})
        shown = table_of(members, views=answer.view + 1, declared=declared, seq=SEQ + 1)
        request = Renew(VICTIM, seen=VERSION + held, prev=SEQ)
        victim.told(Answered(request, -answer.age, TableAnswer(TableStatus.OK, shown)))
        return min(int(-victim.evidence.renewed), self._lease + self._of.grace), victim.adopted

    def _read_view(
        self, renewed: int, held: int, view: int, members: tuple[int, ...], declared: int
    ) -> tuple[int, int]:
        victim = self._core()
        victim.stand(VICTIM, table_of(members, views=held + 1, declared=min(declared, held)))
        victim.stand_renewed(renewed, {})
        shown = table_of(members, views=view + 1, declared=declared)
        victim.told(Answered(Read(), 0.0, TableAnswer(TableStatus.OK, shown)))
        return victim.adopted, min(int(-victim.evidence.renewed), self._lease + self._of.grace)

    def _may_start_turns(self, renewed: int, evidence: tuple[tuple[int, int], ...]) -> bool:
        victim = self._core()
        victim.stand(VICTIM, table_of([member for member, _ in evidence], views=1, declared=0))
        ages = {PEERS[number]: age for number, (member, age) in enumerate(evidence) if member}
        victim.stand_renewed(renewed, ages)
        return victim.deadline > 0.0

    def _losing(self, renewed: int, evidence: tuple[tuple[int, int], ...]) -> tuple[OpenCore, list[Order]]:
        """A victim that is told that the table is lost, and what it orders."""
        victim = self._core()
        victim.stand(VICTIM, table_of([member for member, _ in evidence], views=1, declared=0))
        victim.stand_renewed(renewed, {PEERS[number]: age for number, (member, age) in enumerate(evidence) if member})
        request = Renew(VICTIM, seen=VERSION, prev=SEQ, table=table_id(RUN))
        shown = self._table(table_of((1,), views=2, declared=-1, run=TABLE_NEXT, seq=0)).carry_out(request)
        assert shown.status is TableStatus.LOST
        return victim, victim.told(Answered(request, 0.0, shown))

    def _learn_of_loss(self, renewed: int, evidence: tuple[tuple[int, int], ...]) -> bool:
        """Whether the victim joins again as the one that it is, and goes on as it does.

        Where the right is withheld, it starts nothing before the directory has judged: `tests.exploration.settling`.
        """
        victim, orders = self._losing(renewed, evidence)
        return not victim.is_withheld and any(
            isinstance(order, AskTable) and isinstance(order.request, Rejoin) for order in orders
        )

    def _rejoin(self, renewed: int, before: bool) -> int:
        """How old the victim's renewal is once it was told that its row is there; by an earlier try, or by this one."""
        victim, orders = self._losing(0, ())
        victim.evidence.renewed = -float(renewed)
        request = next(order.request for order in orders if isinstance(order, AskTable))
        table = self._table(table_of((1,), views=2, declared=-1, run=TABLE_NEXT, seq=1 if before else 0))
        victim.told(Answered(request, 0.0, table.carry_out(request)))
        assert victim.adopted > 0
        return min(int(-victim.evidence.renewed), self._lease + self._of.grace)

    def _rejoin_dead(self) -> bool:
        """Whether the table takes a silo back that it calls dead."""
        request = Rejoin(VICTIM, INFO[VICTIM], SiloStatus.ACTIVE, table_of((1,), views=1, declared=0))
        table = self._table(table_of((1,), views=2, declared=-1, dead=True, run=TABLE_NEXT, seq=0))
        return table.carry_out(request).status is not TableStatus.DEAD

    def _evidence(self, age: int, peer: Peer) -> int:
        """How old the victim's evidence is once an acknowledgement of this age has come."""
        return self._come(age, peer.evidence)

    def _take_acknowledgement(self, age: int, evidence: int) -> int:
        victim = self._core()
        victim.stand(VICTIM, table_of((1,), views=1, declared=0))
        victim.stand_renewed(self._lease, {PEERS[0]: evidence})
        victim.told(PeerSaid(PEERS[0], Acknowledgement(-float(age))))
        return min(int(-victim.evidence.acknowledged[PEERS[0]]), self._lease)

    def _peer(self, promised: int, stance: int) -> OpenCore:
        peer = self._core()
        table = table_of((1,), views=1, declared=0, dead=stance == KNOWING)
        peer.stand(PEERS[0], table)
        bound = Binding(0.0, table.run, VERSION, SEQ) if stance == BOUND else None
        peer.stand_promised(promised, bound=bound)
        return peer

    def _stance(self, peer: OpenCore) -> int:
        if peer.view.is_dead(VICTIM):
            return KNOWING
        return BOUND if VICTIM in peer.promises.bound else FREE

    def _acknowledge(self, promised: int, stance: int) -> tuple[int, bool]:
        """What the peer has promised once it was probed, and whether it acknowledges."""
        peer = self._peer(promised, stance)
        orders = peer.told(PeerSaid(VICTIM, Probe(0.0)))
        acknowledged = peer.promises.acknowledged.get(VICTIM)
        kept = self._wait if acknowledged is None else min(int(-acknowledged), self._wait)
        return kept, any(isinstance(order, Tell) for order in orders)

    def _assent(self, promised: int, stance: int) -> tuple[int, bool]:
        peer = self._peer(promised, stance)
        verdict = Verdict(VICTIM, RUN, VERSION, SEQ)
        orders = peer.told(PeerSaid(STRANGER, AssentAsked(verdict)))
        return self._stance(peer), any(isinstance(order, Tell) for order in orders)

    def _learn(self, stance: int, moved: str) -> int:
        """What the peer is once it has read a table in which this has moved."""
        peer = self._peer(self._wait, stance)
        table = table_of(
            (3,) if moved == "version" else (1,),
            views=2 if moved == "version" else 1,
            declared=0,
            dead=moved == "dead",
            run=_run_after(moved),
            seq=SEQ + 1 if moved == "seq" else SEQ - 1 if moved == "run" else 0 if moved == "table" else SEQ,
        )
        if moved == "table":  # it brings what it knows, and reads what came of it
            peer.promises.learn(table, 0.0)
        else:
            peer.told(Answered(Read(), 0.0, TableAnswer(TableStatus.OK, table)))
        return self._stance(peer)

    def _keep_assent(self, moved: str) -> bool:
        """Whether a judge still counts an assent once this has moved."""
        ballots = self._core().ballots
        old = Verdict(VICTIM, RUN, VERSION, SEQ)
        new = Verdict(
            VICTIM,
            _run_after(moved),
            VERSION + (moved == "version"),
            SEQ + (moved == "seq") - (moved == "run"),
        )
        ballots.open(old)
        ballots.add(PEERS[0], old)
        ballots.open(new)
        return PEERS[0] not in ballots.missing(new, table_of((1,), views=1, declared=0))

    def _see(self, unchanged: int, moved: str) -> int:
        """For how long a judge has seen the row stand still, once it has read a table in which this has moved."""
        observations = observing(self._core().observations, unchanged, RUN, SEQ)
        run = _run_after(moved)
        observations.take(table_of((1,), views=1, declared=0, run=run, seq=SEQ + (moved == "seq")), PEERS[0], 0.0)
        seen = observations.of(VICTIM)
        assert seen is not None
        return min(int(-seen.since), self._longest)

    def _judge(
        self,
        unchanged: int,
        number: int,
        promised: int,
        stance: int,
        assents: tuple[tuple[int, bool], ...],
        views: int,
        declared: int,
    ) -> tuple[int, bool] | None:
        """Whether this peer gives a verdict that takes effect; and what it is about the victim then."""
        members = tuple(member for member, _ in assents)
        shown = table_of(members, views=views, declared=declared)
        judge = self._core()
        judge.stand(PEERS[number], shown)
        bound = Binding(0.0, shown.run, shown.version, SEQ) if stance == BOUND else None
        judge.stand_promised(promised, bound=bound)
        judge.stand_observing(unchanged, shown.run, SEQ)
        verdict = verdict_in(shown)
        judge.ballots.open(verdict)
        if assents[number][1]:
            judge.ballots.add(PEERS[number], verdict)
        orders = judge.told(Answered(Read(), 0.0, TableAnswer(TableStatus.OK, shown)))
        mine = PEERS[number] not in judge.ballots.missing(verdict, shown)
        for other, (_, assented) in enumerate(assents):
            if assented and other != number:
                orders += judge.told(PeerSaid(PEERS[other], Assent(verdict)))
        if not any(_is_verdict(order) for order in orders):
            return None
        if self._table(shown).carry_out(verdict).status is not TableStatus.OK:
            return None
        return self._stance(judge), mine

    def _accept_late(self, verdict: str) -> bool:
        """Whether the table takes a verdict since which this has moved."""
        moved = verdict.split()[1:]
        shown = table_of(
            (3,) if "version" in moved else (1,),
            views=2 if "version" in moved else 1,
            declared=0,
            run=TABLE_NEXT if "table" in moved else RUN_NEXT if "run" in moved else RUN,
            seq=SEQ + ("seq" in moved),
        )
        late = Verdict(VICTIM, RUN, VERSION, SEQ)
        return self._table(shown).carry_out(late).status is TableStatus.OK


def _run_after(moved: str) -> str:
    return {"run": RUN_NEXT, "table": TABLE_NEXT}.get(moved, RUN)


def _is_verdict(order: Order) -> bool:
    return isinstance(order, AskTable) and isinstance(order.request, Verdict)


def _with(state: State, number: int, peer: Peer) -> State:
    peers = (*state.peers[:number], peer, *state.peers[number + 1 :])
    return state.but(peers=tuple(sorted(peers)))


def _trimmed(state: State) -> State:
    """Without the views that nobody holds, has under way or has declared; numbers count from the oldest left."""
    flights = [flight.view for flight in (state.answer, state.request) if flight is not None]
    oldest = min(state.held, state.declared, *flights)
    if oldest == 0:
        return state
    peers = tuple(sorted(peer.but(member=peer.member >> oldest) for peer in state.peers))
    return state.but(
        held=state.held - oldest,
        declared=state.declared - oldest,
        views=state.views - oldest,
        born=max(state.born - oldest, 0),
        answer=state.answer and state.answer.but(view=state.answer.view - oldest),
        request=state.request and state.request.but(view=state.request.view - oldest),
        peers=peers,
    )
