"""The lease of one silo, and its judgement of the others: events in, orders out, no clock and no I/O of its own.

Holders count L, waiters count W = L(1+d). A silo renews its row in the membership table; it may start turns until L
after it *sent* the last renewal that was answered. Whoever sees a row's `seq` stand still for W, counted from when it
*received* the first answer showing it, may declare that silo dead, and only if run, version and seq are still what it
saw. All times are one process's own clock; no reading of it ever reaches another.

Whoever carries out the orders ends every AskTable with Answered or Failed within `LeaseSettings.ask_timeout_s`; later
and repeated answers do no harm.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from silo.directory.addresses import SiloAddress, stable_hash
from silo.directory.errors import InvalidSettings, MembershipUnavailable, SiloError, SiloFenced
from silo.directory.lease_events import (
    AdoptView,
    AdvanceAsked,
    Answered,
    AskTable,
    Conclude,
    Event,
    Failed,
    GoodbyeAsked,
    Hinted,
    HoldRight,
    JoinAsked,
    Order,
    ProcessEnded,
    ReadAsked,
    ResignRight,
    Ticked,
    UnwatchProcess,
    WatchProcess,
)
from silo.directory.membership import (
    EMPTY_VIEW,
    Advance,
    Bury,
    Join,
    Read,
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
)

STALE_RENEWALS_MAX = 3
"""Renewals sent at once because the one before was stale; after these the next waits for its time."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The times of the lease; everything else is derived from `lease_s`."""

    lease_s: float = 5.0
    drift: float = 0.1
    """By how much two clocks of the cluster may run apart, as a share."""
    prove_deaths: bool = True
    """Whether the end of a neighbour's process, seen through the operating system, counts as its death."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lease_s) and self.lease_s > 0):
            raise InvalidSettings(f"lease_s is a time above 0, not {self.lease_s}")
        if not 0 < self.drift < 1:
            raise InvalidSettings(f"drift is a share between 0 and 1, not {self.drift}")

    @property
    def renew_every_s(self) -> float:
        return self.lease_s / 5

    @property
    def ask_timeout_s(self) -> float:
        """How long one request to the table may take."""
        return self.lease_s / 5

    @property
    def return_within_s(self) -> float:
        """How long a silo that is leaving, and has lost its lease, waits for it to come back: for one renewal."""
        return self.lease_s * 3 / 10

    @property
    def ask_within_s(self) -> float:
        """How long join, advance and goodbye are tried again before they fail with MembershipUnavailable."""
        return self.lease_s * 2

    @property
    def eligible_within_s(self) -> float:
        """A silo that was silent for longer gets no new placements."""
        return self.lease_s * 2 / 5

    @property
    def gap_s(self) -> float:
        """Answers further apart than this say nothing of who was silent in between."""
        return self.lease_s / 2

    @property
    def wait_s(self) -> float:
        """How long a silo must have been silent before it may be declared dead."""
        return self.lease_s * (1 + self.drift)


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


@dataclass(frozen=True, slots=True)
class Observation:
    """Since when, by the own clock, a row has shown the same seq in the same run of the store."""

    run: str
    seq: int
    since: float


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
        self.deadline = -math.inf
        self.view = EMPTY_VIEW
        self._me: SiloAddress | None = None
        self._info: SiloInfo | None = None
        self._row: SiloRow | None = None  # my own, as the table last showed it
        self._table: Table = EMPTY_VIEW.table
        self._answered_at = -math.inf
        self._renewed = -math.inf  # when the last answered renewal was sent
        self._renewing: Renew | None = None
        self._renewal_at = -math.inf  # when the last renewal was ordered
        self._stale_renewals = 0
        self._hinted = 0  # the newest version that somebody spoke of
        self._why = ""  # why the right was resigned
        self._observed: dict[SiloAddress, Observation] = {}
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
            case _, JoinAsked(token, silo, info):
                self._join(token, silo, info, now)
            case Phase.MEMBER, AdvanceAsked(token, status) if self._me is not None:
                self._run_errand(token, Advance(self._me, status), now)
            case ((Phase.JOINING | Phase.MEMBER | Phase.GONE), GoodbyeAsked(token)) if self._me is not None:
                self._resign(Phase.GONE, "it said goodbye")  # first: nothing may start once the request is carried out
                self._run_errand(token, Bury(self._me, "its own goodbye"), now)
            case _, GoodbyeAsked(token):
                self._orders.append(Conclude(token))  # it never came, or is dead already
            case _, AdvanceAsked(token):
                self._orders.append(Conclude(token, self._refusal()))
            case _, Ticked():
                self._on_tick(now)
            case Phase.MEMBER, Hinted(version):
                self._hinted = version
                self._follow(now)
            case Phase.MEMBER, ProcessEnded(silo):
                self._proven.add(silo)
                self._bury_proven()
            case _, (Hinted() | ProcessEnded()):
                pass  # not a member: the table is nobody's to follow, and the death of others is for members to declare
        orders, self._orders = self._orders, []
        return orders

    def wake_at(self, now: float) -> float:
        """When the next tick is due; infinity for never."""
        dues = [errand.retry_at for errand in self._errands.values() if errand.retry_at is not None]
        if self.phase is Phase.MEMBER:
            dues.append(self._renewal_at + self.settings.renew_every_s)
            if self._renewing is None and self._renewal_at <= self._answered_at:  # the last one was not failed
                dues.extend(
                    due for due in (self._judge_at(silo, now) for silo in self._observed) if due > self._answered_at
                )
        return min(dues, default=math.inf)

    def silence_s(self, silo: SiloAddress) -> float:
        """For how long the silo had not renewed when the table last answered; infinity for one that is no member."""
        if silo == self._me:
            return 0.0
        observation = self._observed.get(silo)
        return math.inf if observation is None else self._answered_at - observation.since

    # ---- time

    def _on_tick(self, now: float) -> None:
        for errand in self._errands.values():
            if errand.retry_at is not None and now >= errand.retry_at:
                errand.retry_at = None
                self._orders.append(AskTable(errand.request))
        if self.phase is Phase.MEMBER and now >= self.wake_at(now):
            self._stale_renewals = 0
            self._renew(now)  # also where a verdict is due: it is given on a fresh answer only

    def _renew(self, now: float) -> None:
        if self._me is not None and self._row is not None:
            self._renewing = Renew(self._me, seen=self._table.version, prev=self._row.seq)
            self._renewal_at = now
            self._orders.append(AskTable(self._renewing))

    def _join(self, token: int, silo: SiloAddress, info: SiloInfo, now: float) -> None:
        if self.phase in (Phase.GONE, Phase.DEAD) or self._me not in (None, silo):
            self._orders.append(Conclude(token, self._refusal()))
            return
        self._me, self._info = silo, info
        if self.phase is Phase.OUTSIDE:
            self.phase = Phase.JOINING
        self._run_errand(token, Join(silo, info), now)

    def _run_errand(self, token: int, request: TableRequest, now: float) -> None:
        self._errands[token] = _Errand(request, until=now + self.settings.ask_within_s)
        self._orders.append(AskTable(request))

    def _read(self) -> None:
        if self._readers_next and not self._readers:
            self._readers, self._readers_next = tuple(self._readers_next), []
            self._orders.append(AskTable(Read()))

    # ---- answers

    def _on_answer(self, request: TableRequest, sent_at: float, answer: TableAnswer, now: float) -> None:
        stale = False
        match request:
            case Join() | Renew() if answer.status is TableStatus.OK and self.phase in (Phase.JOINING, Phase.MEMBER):
                self._renewed = max(self._renewed, sent_at)
            case Renew() if answer.status is TableStatus.STALE:
                stale = request == self._renewing
            case Join() if answer.status is TableStatus.STALE:
                stale = True  # the row is there by an earlier try, and its lease counts from nothing yet
            case Verdict() if request == self._verdict:
                self._verdict = None
            case _:
                pass  # what matters of it is the table
        if request == self._renewing:
            self._renewing = None
        if isinstance(request, Bury):
            self._burying.discard(request.target)
        if answer.status is TableStatus.DEAD and self.phase in (Phase.JOINING, Phase.MEMBER):
            self._resign(Phase.DEAD, "the table calls it dead")
        self._adopt(answer.table, now)
        if self.phase is Phase.MEMBER:
            self._hold()
            self._bury_proven()
            self._judge(now)
            self._follow(now, stale=stale)
        given_up = self.phase is Phase.DEAD and isinstance(request, Join | Advance)
        self._conclude(request, self._refusal() if given_up else None)

    def _follow(self, now: float, *, stale: bool = False) -> None:
        """Renew at once where that declares a newer version, reads one hinted at, or repairs a stale renewal."""
        undeclared = self._row is not None and self._row.seen < self._table.version
        hinted = self._hinted > self._table.version
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

    def _on_failure(self, request: TableRequest, sent_at: float, because: SiloError, now: float) -> None:
        if request == self._renewing:
            self._renewing = None  # the next one goes out at its time
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

    def _adopt(self, table: Table, now: float) -> None:
        row = next((row for row in table.rows if row.silo == self._me), None)
        if self._is_older(table, row):
            return
        gap = now - self._answered_at > self.settings.gap_s
        newer, was = table.version > self._table.version, self.phase
        self._answered_at, self._table = now, table
        self._observe(table, now, gap=gap)
        if self.phase in (Phase.JOINING, Phase.MEMBER):
            self._recognise(row)
        if newer:
            self.view = View(table)
            self._orders.append(AdoptView(self.view))
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
        until = self._renewed + self.settings.lease_s
        if until > self.deadline:
            self.deadline = until
            self._orders.append(HoldRight(until))

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

    def _observe(self, table: Table, now: float, *, gap: bool) -> None:
        """Since when each of the others has been silent. After a gap everybody gets the whole time again: else, after
        an outage of the store, the first silo back would judge all those who are only on their way back."""
        observed: dict[SiloAddress, Observation] = {}
        for row in table.rows:
            if row.silo == self._me or row.status is SiloStatus.DEAD:
                continue
            known = self._observed.get(row.silo)
            if known is None or gap or (known.run, known.seq) != (table.run, row.seq):
                known = Observation(table.run, row.seq, now)
            observed[row.silo] = known
        self._observed = observed

    def _judge_at(self, target: SiloAddress, now: float) -> float:
        """When I may declare this silo dead: one judge at W, by rendezvous rank among the audible, then the next."""
        due = self._observed[target].since + self.settings.wait_s
        if self._me is None or due > now + self.settings.renew_every_s:
            return due  # too far off to rank judges for
        mine = stable_hash(f"{target} {self._me}")
        lease_s = self.settings.lease_s
        judges = (silo for silo, seen in self._observed.items() if silo != target and now - seen.since < lease_s)
        rank = sum(stable_hash(f"{target} {silo}") < mine for silo in judges)
        return due + rank * self.settings.renew_every_s

    def _judge(self, now: float) -> None:
        """Give the verdict that is due: on an answer only, so that run, version and seq are fresh and no verdict waits
        in front of a store that stands still; one at a time, since each moves the version."""
        if self._verdict is not None:
            return
        for silo, seen in self._observed.items():
            if now >= self._judge_at(silo, now):
                self._verdict = Verdict(silo, seen.run, self._table.version, seen.seq)
                self._orders.append(AskTable(self._verdict))
                return

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
        self._proven &= self._observed.keys()
        for silo in sorted(self._proven - self._burying):
            self._burying.add(silo)
            self._orders.append(AskTable(Bury(silo, "its process ended")))
