"""The lease of one silo, and its judgement of the others: events in, orders out, no clock and no I/O of its own.

This is rule R of ARCHITECTURE.md. Its parts each decide one thing: until when turns may start (`lease_evidence`), what
was promised about others (`lease_promises`), for how long they have been silent (`lease_observations`), and whether a
verdict has its majorities (`lease_ballots`). Here is the protocol that joins them.

Holders count L, waiters count W = L(1+d), or S = (L+G)(1+d) where nobody assents. All times are one process's own
clock; no reading of it means anything to another.

Whoever carries out the orders ends every AskTable with Answered or Failed within `LeaseSettings.ask_timeout_s`; later
and repeated answers do no harm. What Tell sends may be lost, delayed or repeated.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from silo.directory.addresses import SiloAddress, stable_hash
from silo.directory.errors import MembershipUnavailable, SiloError, SiloFenced
from silo.directory.lease_ballots import Ballots
from silo.directory.lease_earlier import EarlierSilos
from silo.directory.lease_events import (
    AdoptView,
    AdvanceAsked,
    Answered,
    AskTable,
    Conclude,
    Confirmed,
    CordonAsked,
    Event,
    Failed,
    GoodbyeAsked,
    Hinted,
    HoldRight,
    JoinAsked,
    Order,
    PeerSaid,
    ProcessEnded,
    ReadAsked,
    ResignRight,
    Tell,
    Ticked,
    UnwatchProcess,
    WatchProcess,
)
from silo.directory.lease_evidence import Evidence
from silo.directory.lease_messages import (
    Acknowledgement,
    Assent,
    AssentAsked,
    Forward,
    Forwarded,
    LeaseMessage,
    Probe,
)
from silo.directory.lease_observations import Observations
from silo.directory.lease_promises import Promises
from silo.directory.lease_settings import LeaseSettings
from silo.directory.lease_ways import Ways
from silo.directory.membership import (
    EMPTY_VIEW,
    Advance,
    Bury,
    Cordon,
    Join,
    Read,
    Rejoin,
    Renew,
    SiloInfo,
    SiloRow,
    SiloStatus,
    Table,
    TableAnswer,
    TableRequest,
    TableStatus,
    Verdict,
    View,
    others_at,
)

__all__ = ["STALE_RENEWALS_MAX", "LeaseCore", "LeaseSettings", "Phase"]

FIRST_VERSION = 1
"""Of every table that nobody brought anything to."""
STALE_RENEWALS_MAX = 3
"""Renewals sent at once because the one before was stale; after these the next waits for its time."""


class Phase(enum.Enum):
    OUTSIDE = "outside"
    """Has not asked to join."""
    JOINING = "joining"
    """Has asked, and does not know its row yet."""
    MEMBER = "member"
    """Renews, and judges."""
    GONE = "gone"
    """Said goodbye: renews and judges no more."""
    DEAD = "dead"
    """Was told that it is dead, or may no longer be itself."""


@dataclass(slots=True)
class _Errand:
    """A request on behalf of a caller, sent again until it is answered or its time is over."""

    request: TableRequest
    until: float
    retry_at: float | None = None
    """When to send it again; None while it is on its way."""


class LeaseCore:
    """One silo's lease. `deadline` is the time until which turns may start; `wake_at` is when to tick."""

    def __init__(self, settings: LeaseSettings) -> None:
        self.settings = settings
        self.phase = Phase.OUTSIDE
        self.deadline = self._leased_until = -math.inf
        self.view = EMPTY_VIEW
        self._me: SiloAddress | None = None
        self._info: SiloInfo | None = None
        self._row: SiloRow | None = None  # my own, as the table last showed it
        self._table: Table = EMPTY_VIEW.table
        self.evidence = Evidence(settings)
        self.promises = Promises(settings)
        self.observations = Observations(settings)
        self.ballots = Ballots()
        self.earlier = EarlierSilos(settings)
        self._others: tuple[SiloAddress, ...] = ()  # the other members of my view, in order
        self._ways = Ways()
        self._forwarding: dict[SiloAddress, Forward] = {}  # what I was asked to pass on, and have not answered
        self._probed_at = -math.inf
        self._known_at = -math.inf  # since when I know of the table that I follow
        self._lost: set[str] = set()  # the ids of tables that are no more
        self._rejoining = False  # the table that had my row is one of them
        self.is_withheld = False
        """Whether it may have been replaced by what the lost table said, so that the directory has to judge first."""
        self._renewing: Renew | Rejoin | None = None
        self._renewal_at = -math.inf  # when the last renewal was ordered
        self._stale_renewals = 0
        self._hinted = 0  # the newest version that somebody spoke of
        self._why = ""  # why the right was resigned
        self._verdict: Verdict | None = None
        self._watched: set[SiloAddress] = set()
        self._proven: set[SiloAddress] = set()  # whose processes have ended, while the table still has them alive
        self._burying: set[SiloAddress] = set()  # those of them about whom the table is being asked
        self._errands: dict[int, _Errand] = {}
        self._readers: tuple[int, ...] = ()  # whom the read on its way will serve
        self._readers_next: list[int] = []  # those who asked after it was sent
        self._orders: list[Order] = []

    def on(self, event: Event, now: float) -> list[Order]:
        """What to do about this event, in this order."""
        match self.phase, event:
            case _, Answered(request, sent_at, answer):
                self._on_answer(request, sent_at, answer, now)
            case _, Failed(request, sent_at, because):
                self._on_failure(request, sent_at, because, now)
            case _, ReadAsked(token):
                self._readers_next.append(token)
                self._read()
            case _, JoinAsked(token, silo, info, bootstrap):
                self._join(token, Join(silo, info, bootstrap), now)
            case Phase.MEMBER, AdvanceAsked(token, status) if self._me is not None:
                self._run_errand(token, Advance(self._me, status), now)
            case Phase.MEMBER, CordonAsked(token, cordoned):
                self._cordon(token, cordoned, now)
            case ((Phase.JOINING | Phase.MEMBER | Phase.GONE), GoodbyeAsked(token)) if self._me is not None:
                self._resign(Phase.GONE, "it said goodbye")  # first: nothing may start once the request is carried out
                self._run_errand(token, Bury(self._me, "its own goodbye"), now)
            case _, GoodbyeAsked(token):
                self._orders.append(Conclude(token))  # it never came, or is dead already
            case _, (AdvanceAsked(token) | CordonAsked(token)):
                self._orders.append(Conclude(token, self._refusal()))
            case Phase.MEMBER, Confirmed(run) if run == self._table.run and not self._rejoining:
                self.is_withheld = False
                self._hold()
            case _, Confirmed():
                pass  # of a table that is no more, or too late
            case _, Ticked():
                self._on_tick(now)
            case Phase.MEMBER, Hinted(version):
                self._hinted = version
                self._follow(now)
            case Phase.MEMBER, ProcessEnded(silo):
                self._proven.add(silo)
                self._bury_proven()
            case Phase.MEMBER, PeerSaid(peer, message):
                self._hear(peer, message, now)
            case _, (Hinted() | ProcessEnded() | PeerSaid()):
                pass  # not a member: it follows no table, declares nobody dead, and promises nothing that it might need
        orders, self._orders = self._orders, []
        return orders

    def wake_at(self, now: float) -> float:
        """When the next tick is due; infinity for never."""
        dues = [errand.retry_at for errand in self._errands.values() if errand.retry_at is not None]
        if self.phase is Phase.MEMBER:
            dues += [self._renew_at(now), self._probe_at()]
        return min(dues, default=math.inf)

    def silence_s(self, silo: SiloAddress) -> float:
        """For how long the silo had not renewed when the table last answered; infinity for one that is no member."""
        return 0.0 if silo == self._me else self.observations.silence_s(silo)

    # ---- time

    def _on_tick(self, now: float) -> None:
        for errand in self._errands.values():
            if errand.retry_at is not None and now >= errand.retry_at:
                errand.retry_at = None
                self._orders.append(AskTable(errand.request))
        if self.phase is not Phase.MEMBER:
            return
        if now >= self._renew_at(now):
            self._stale_renewals = 0
            if self._renewing is not None:
                self._ways.failed(self._others)
            self._renew(now)  # also where a verdict is due: it is given on a fresh answer only
        if now >= self._probe_at():
            self._probed_at = now
            self._orders.extend(Tell(silo, Probe(now)) for silo in self._others)

    def _renew_at(self, now: float) -> float:
        """When the next renewal is due: every beat, and where a verdict is due and no renewal is on its way."""
        due = self._renewal_at + self.settings.renew_every_s
        has_failed = self._renewal_at > self.observations.answered_at  # then the next waits for its beat
        if self._renewing is None and not self._rejoining and not has_failed:
            judgements = (self._judge_at(silo, now) for silo in self.observations)
            due = min([due, *(at for at in judgements if at > self.observations.answered_at)])
        return due

    def _probe_at(self) -> float:
        """When the others are to be probed: every beat while the last renewal is old, and never in good times."""
        if not self._others:
            return math.inf
        return max(self.evidence.renewed + self.settings.probe_after_s, self._probed_at + self.settings.renew_every_s)

    def _renew(self, now: float) -> None:
        if self._me is not None and self._row is not None:
            self._renewal_at = now
            if self._rejoining and self._info is not None:
                self._ways.choose(())  # this is for the table itself
                self._renewing = Rejoin(self._me, self._info, self._row.status, self._table, self._row.cordoned)
                self._orders.append(AskTable(self._renewing))
                return
            self._renewing = Renew(self._me, seen=self._table.version, prev=self._row.seq, table=self._table.id)
            way = self._ways.choose(self._others)
            if way is None:
                self._orders.append(AskTable(self._renewing))
            else:
                self._orders.append(Tell(way, Forward(now, self._renewing)))

    def _join(self, token: int, request: Join, now: float) -> None:
        if self.phase in (Phase.GONE, Phase.DEAD) or self._me not in (None, request.silo):
            self._orders.append(Conclude(token, self._refusal()))
            return
        self._me, self._info = request.silo, request.info
        if self.phase is Phase.OUTSIDE:
            self.phase = Phase.JOINING
        self._run_errand(token, request, now)

    def _run_errand(self, token: int, request: TableRequest, now: float) -> None:
        self._errands[token] = _Errand(request, until=now + self.settings.ask_within_s)
        self._orders.append(AskTable(request))

    def _cordon(self, token: int, cordoned: bool, now: float) -> None:
        """The last order holds: one that says otherwise, and may not have been carried out, is not asked for again."""
        if self._me is None or self._info is None:
            self._orders.append(Conclude(token, self._refusal()))
            return
        for earlier, errand in list(self._errands.items()):
            if isinstance(errand.request, Cordon) and errand.request.cordoned is not cordoned:
                del self._errands[earlier]
                self._orders.append(Conclude(earlier, MembershipUnavailable("a later order says otherwise")))
        self._run_errand(token, Cordon(self._me, self._info, cordoned, self._table.version), now)

    def _cordon_anew(self, request: Cordon, now: float) -> None:
        """The table has moved on since the version that the request was bound to: bind it to the newest."""
        anew = Cordon(request.silo, request.info, request.cordoned, self._table.version)
        moved = anew.version != request.version
        for token, errand in list(self._errands.items()):
            if errand.request != request:
                continue
            if moved and now < errand.until:
                errand.request, errand.retry_at = anew, None
                self._orders.append(AskTable(anew))
            else:
                del self._errands[token]
                self._orders.append(Conclude(token, MembershipUnavailable("the membership row would not stand still")))

    def _read(self) -> None:
        if self._readers_next and not self._readers:
            self._readers, self._readers_next = tuple(self._readers_next), []
            self._orders.append(AskTable(Read()))

    # ---- answers

    def _on_answer(
        self, request: TableRequest, sent_at: float, answer: TableAnswer, now: float, *, forwarded: bool = False
    ) -> None:
        if not forwarded:
            self._ways.answered_directly()
        mine = not isinstance(request, Renew) or request.silo == self._me
        status, stale = answer.status if mine else TableStatus.OK, False
        match request:
            case Renew() if not mine:
                self._return(request, answer)
            case Join() | Renew() | Rejoin() if status is TableStatus.OK and self.phase in (
                Phase.JOINING,
                Phase.MEMBER,
            ):
                self.evidence.take_renewal(sent_at)
            case Renew() if status is TableStatus.LOST:
                stale = self._lose(request.table, now)
            case Renew() if status is TableStatus.STALE:
                stale = request == self._renewing
            case Join() | Rejoin() if status is TableStatus.STALE:
                stale = True  # the row is there by an earlier try, and its lease counts from nothing yet
            case Verdict() if request == self._verdict:
                self._verdict = None
            case _:
                pass  # what matters of it is the table
        if request == self._renewing:
            self._renewing = None
        if isinstance(request, Bury):
            self._burying.discard(request.target)
        if (
            status is TableStatus.DEAD
            and not isinstance(request, Advance | Cordon)
            and self.phase in (Phase.JOINING, Phase.MEMBER)
        ):
            self._resign(Phase.DEAD, "the table calls it dead")
        self._adopt(answer.table, sent_at, now, rejoined=isinstance(request, Rejoin))
        if self.phase is Phase.MEMBER:
            self._hold()  # before the renewal that declares the view by which it counts
            self._bury_proven()
            if not self._rejoining:  # no verdict of a table that is no more takes effect
                self._judge(now)
            self._follow(now, stale=stale)
        if isinstance(request, Advance | Cordon) and self._rejoining:
            self._postpone(request, now)  # it said nothing to a row that is there no more
            return
        if isinstance(request, Cordon) and status is not TableStatus.OK and self.phase is Phase.MEMBER:
            self._cordon_anew(request, now)
            return
        error: SiloError | None = None
        if self.phase is Phase.DEAD and isinstance(request, Join | Advance | Cordon):
            error = self._refusal()
        elif isinstance(request, Read) and self._rejoining:
            error = MembershipUnavailable("the membership table was lost, and this silo is not in the next one yet")
        self._conclude(request, error)

    def _follow(self, now: float, *, stale: bool = False) -> None:
        """Renew at once where that declares a newer version, reads one hinted at, or repairs a stale renewal."""
        undeclared = self._row is not None and self._row.seen < self._table.version
        # a table in which there has been one change alone is another one, and some newcomer has begun it
        hinted = self._hinted > self._table.version or self._hinted == FIRST_VERSION < self._table.version
        if self._renewing is None and (undeclared or hinted or stale) and self._stale_renewals < STALE_RENEWALS_MAX:
            self._stale_renewals += stale
            self._hinted = 0  # one look per hint, whatever it said
            self._renew(now)

    def _refusal(self) -> SiloFenced:
        return SiloFenced(f"silo {self._me} is {self.phase.value}{self._why and ': ' + self._why}")

    def _conclude(self, request: TableRequest, error: SiloError | None) -> None:
        for token, errand in list(self._errands.items()):
            if errand.request == request:
                del self._errands[token]
                self._orders.append(Conclude(token, error))
        if isinstance(request, Read):
            readers, self._readers = self._readers, ()
            self._orders.extend(Conclude(token, error) for token in readers)
            self._read()

    def _postpone(self, request: TableRequest, now: float) -> None:
        for errand in self._errands.values():
            if errand.request == request and errand.retry_at is None:
                errand.retry_at = now + self.settings.renew_every_s

    def _on_failure(self, request: TableRequest, sent_at: float, because: SiloError, now: float) -> None:
        if request == self._renewing and self._ways.is_direct:
            self._renewing = None  # the next one goes out at its time
            self._ways.failed(self._others)
        if isinstance(request, Renew):
            self._forwarding.pop(request.silo, None)  # whoever asked for it asks somebody else
        if request == self._verdict:
            self._verdict = None  # the next answer judges anew
        if isinstance(request, Bury):
            self._burying.discard(request.target)  # as above
        if isinstance(request, Read):
            self._conclude(request, because)
        for token, errand in list(self._errands.items()):
            if errand.request != request:
                continue
            if now >= errand.until or not isinstance(because, MembershipUnavailable):
                del self._errands[token]
                self._orders.append(Conclude(token, because))
            elif errand.retry_at is None:
                errand.retry_at = max(now, sent_at + self.settings.renew_every_s)

    # ---- the table and its view

    def _is_inside(self) -> bool:
        return self.phase in (Phase.JOINING, Phase.MEMBER)

    def _lose(self, table_id: str, now: float) -> bool:
        """The table of this id is no more, and what it still says counts for nothing; True if my row goes into the new.

        While it held the right, it was not dead in the table that is no more: the lease stands as it is, and its row
        comes back with all the others that it knows. A silo without the right may have been replaced. It comes back
        likewise, since whoever knows that it is dead says so; but who took over its grains and who knew of its death
        need not be the same, so it starts nothing before the directory has judged by what all the others claim.
        """
        self._lost.add(table_id)
        if self._row is None or self._table.id != table_id or self._rejoining or self.phase is not Phase.MEMBER:
            return False
        self._rejoining = True
        if now >= self.deadline:
            self.is_withheld = True
        return True

    def _adopt(self, table: Table, sent_at: float, now: float, *, rejoined: bool) -> None:
        if self._lost and table.id in self._lost:
            return
        is_another = table.run != self._table.run and table.id != self._table.id
        row = next((row for row in table.rows if row.silo == self._me), None)
        if self._row is not None and is_another:
            if sent_at < self._known_at:
                return  # it may be of before: which of two tables is the later one, only the order of asking tells
            self._lose(self._table.id, now)
            if not rejoined or not self._is_inside() or row is None or row.seq == 0:
                return
            self._rejoining, self._row = False, None
        if self._is_older(table, row):
            return
        newer, was = table.version > self._table.version, self.phase
        if is_another:
            self._known_at = now
        self._table = table
        self.observations.take(table, self._me, now)
        self.earlier.take(table, now)
        if self.phase in (Phase.JOINING, Phase.MEMBER):
            self._recognise(row)
        if newer:
            self.view = View(table)
            self._orders.append(AdoptView(self.view))
        self.promises.learn(table, sent_at)
        if newer and self._me is not None:
            others = others_at(table, table.version, self._me)
            self._others = tuple(sorted(others))
            self.evidence.forget_all_but(others)
            self.ballots.close_all_but(self.observations)
        if self.phase is not was:
            self._renewal_at = now  # what has just been shown needs no renewal at once
        if newer or self.phase is not was:
            self._watch_neighbours()

    def _is_older(self, table: Table, row: SiloRow | None) -> bool:
        """Versions never go back, not even over a failover: the store leaps ahead when its run changes."""
        if table.version != self._table.version or table.run != self._table.run:
            return table.version < self._table.version
        return row is not None and self._row is not None and row.seq < self._row.seq

    def _recognise(self, row: SiloRow | None) -> None:
        """Take over my own row, or give up if the row is not there, is dead, or is not the one that I know."""
        mine = self._row
        if row is None:
            if mine is not None:
                self._resign(Phase.DEAD, "its row is gone from the table")
        elif row.status is SiloStatus.DEAD:
            self._resign(Phase.DEAD, "the table calls it dead")
        elif row.info != self._info or (mine is not None and mine.joined != row.joined):
            self._resign(Phase.DEAD, "another process took its row")
        else:
            self._row = row
            self.phase = Phase.MEMBER

    def _hold(self) -> None:
        """Publish until when turns may start; earlier than before where a newer view has other members."""
        deadline, leased_until = self.evidence.deadline(self._others), self.evidence.leased_until
        if self.is_withheld:
            deadline = leased_until = -math.inf
        if (deadline, leased_until) != (self.deadline, self._leased_until):
            self.deadline, self._leased_until = deadline, leased_until
            self._orders.append(HoldRight(deadline, leased_until))

    def _resign(self, phase: Phase, because: str) -> None:
        if self.phase is not phase:
            self.phase, self.deadline, self._renewing, self._why = phase, -math.inf, None, because
            self._orders.append(ResignRight(phase is Phase.DEAD, because))
            self._orders.extend(UnwatchProcess(silo) for silo in sorted(self._watched))
            self._watched.clear()
            for token in list(self._errands):  # a join sent again after the goodbye would bring the row back
                del self._errands[token]
                self._orders.append(Conclude(token, self._refusal()))

    # ---- the others

    def _hear(self, peer: SiloAddress, message: LeaseMessage, now: float) -> None:
        self.promises.hear(peer, now)
        match message:
            case Probe(echo) if self.promises.acknowledge(peer, self.view, now):
                self._orders.append(Tell(peer, Acknowledgement(echo)))
            case Acknowledgement(echo) if echo <= now and peer in self._others:
                self.evidence.take_acknowledgement(peer, echo)
                self._hold()
            case AssentAsked(verdict) if verdict.target != self._me and self.promises.assent(verdict, now):
                self._orders.append(Tell(peer, Assent(verdict)))
            case Assent(verdict) if verdict == self._verdict_on(verdict.target):
                self.ballots.add(peer, verdict)
                self._give(verdict, now)
            case Forward(_, renewal) if renewal.silo == peer:
                self._forwarding[peer] = message
                self._orders.append(AskTable(renewal))
            case Forwarded(echo, renewal, answer) if renewal.silo == self._me and echo <= now:
                self._on_answer(renewal, echo, answer, now, forwarded=True)
            case _:
                pass  # a promise that is not given, a verdict that is void by now, or words that cannot be meant for me

    def _return(self, renewal: Renew, answer: TableAnswer) -> None:
        forward = self._forwarding.get(renewal.silo)
        if forward is not None and forward.renewal == renewal:
            del self._forwarding[renewal.silo]
            self._orders.append(Tell(renewal.silo, Forwarded(forward.echo, renewal, answer)))

    def _judge_at(self, target: SiloAddress, now: float) -> float:
        """When I ask for a verdict on this silo: one judge at W, by rendezvous rank among the audible, then another."""
        seen = self.observations.of(target)
        due = math.inf if seen is None else seen.since + self.settings.wait_s
        if self._me is None or due > now + self.settings.renew_every_s:
            return due  # too far off to rank judges for
        mine = stable_hash(f"{target} {self._me}")
        judges = self.observations.audible(now) - {target}
        rank = sum(stable_hash(f"{target} {silo}") < mine for silo in judges)
        return due + rank * self.settings.renew_every_s

    def _judge(self, now: float) -> None:
        """Ask for the verdicts that are due: on an answer only, so that run, version and seq are fresh, and again with
        each answer, since assents get lost and those who refused may have changed their minds."""
        for silo in self.observations:
            verdict = self._verdict_on(silo) if now >= self._judge_at(silo, now) else None
            if verdict is not None and self._me is not None:
                self.ballots.open(verdict)
                if self.promises.assent(verdict, now):
                    self.ballots.add(self._me, verdict)
                electors = sorted(self.ballots.missing(verdict, self._table) - {self._me})
                self._orders.extend(Tell(elector, AssentAsked(verdict)) for elector in electors)
                self._give(verdict, now)
        given_up = self.earlier.verdict(self._table, now)
        if given_up is not None and self._verdict is None:
            self._verdict = given_up
            self._orders.append(AskTable(given_up))

    def _verdict_on(self, target: SiloAddress) -> Verdict | None:
        """The verdict on this silo that could take effect, as far as I know."""
        seen = self.observations.of(target)
        return None if seen is None else Verdict(target, seen.run, self._table.version, seen.seq)

    def _give(self, verdict: Verdict, now: float) -> None:
        """Declare the silo dead if it was silent for long enough and enough of the others assent, or if it was silent
        for so long that no acknowledgement can count any more. One at a time, since each moves the version."""
        seen = self.observations.of(verdict.target)
        if seen is None or self._verdict is not None:
            return
        carried = now >= seen.since + self.settings.wait_s and self.ballots.is_carried(verdict, self._table)
        if carried or now >= seen.since + self.settings.wait_alone_s:
            self._verdict = verdict
            self._orders.append(AskTable(verdict))

    def _watch_neighbours(self) -> None:
        """Watch the processes of the living silos on this machine, and of no others."""
        machine = self._info.process.machine if self._info is not None and self._info.process is not None else None
        if machine is None or not self.settings.prove_deaths or self.phase is not Phase.MEMBER:
            return
        near = {
            row.silo: row.info.process
            for row in self.view.living()
            if row.silo != self._me and row.info.process is not None and row.info.process.machine == machine
        }
        self._orders.extend(UnwatchProcess(silo) for silo in sorted(self._watched - near.keys()))
        self._orders.extend(WatchProcess(silo, near[silo]) for silo in sorted(near.keys() - self._watched))
        self._watched = set(near)

    def _bury_proven(self) -> None:
        if not self._proven:
            return
        self._proven &= set(self.observations)
        for silo in sorted(self._proven - self._burying):
            self._burying.add(silo)
            self._orders.append(AskTable(Bury(silo, "its process ended")))
