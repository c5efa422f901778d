"""Bugs to be found: each takes one rule away, by a subclass of the part that keeps it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from silo.directory.addresses import SiloAddress
from silo.directory.lease_ballots import Ballots
from silo.directory.lease_events import Answered, Event, Order, PeerSaid
from silo.directory.lease_evidence import Evidence
from silo.directory.lease_messages import Acknowledgement
from silo.directory.lease_observations import Observation, Observations
from silo.directory.lease_promises import Promises
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import Renew, SiloStatus, Table, TableAnswer, TableRequest, Verdict
from tests.exploration.membership.cores import VICTIM, OpenCore, OpenTable, Ticks
from tests.exploration.membership.world import Configuration, Parts

# ---- acknowledgements and assents


class DoesNotBind(Promises):
    def bind(self, verdict: Verdict, now: float) -> bool:
        return True


class AcknowledgesAfterAssent(OpenCore):
    """Who has assented acknowledges all the same."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.promises = DoesNotBind(settings)


class AssentsABitEarly(Promises):
    def assent(self, verdict: Verdict, now: float) -> bool:
        return super().assent(verdict, now + 1)


class AssentsEarly(OpenCore):
    """A promise is kept for a tick less than the wait."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.promises = AssentsABitEarly(settings)


# ---- evidence


class RoundsDown(Evidence):
    def needed(self, others: int) -> int:
        return max(1, others // 2)


class AmberRoundsDown(OpenCore):
    """Amber needs floor(m/2)."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.evidence = RoundsDown(settings)


class Uncapped(Evidence):
    def deadline(self, others: Collection[SiloAddress]) -> float:
        return max(super().deadline(others), self._acknowledged_until(others))


class AmberWithoutEnd(OpenCore):
    """Acknowledgements count beyond L+G."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.evidence = Uncapped(settings)


class NeedsNobody(Evidence):
    def deadline(self, others: Collection[SiloAddress]) -> float:
        amber = self.renewed + self._settings.lease_s + self._settings.grace_s
        return super().deadline(others) if others else amber


class AmberAlone(OpenCore):
    """A silo without others needs no acknowledgement."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.evidence = NeedsNobody(settings)


class RenewsFromReceipt(OpenCore):
    """A renewal counts from when its answer came."""

    def on(self, event: Event, now: float) -> list[Order]:
        if isinstance(event, Answered) and isinstance(event.request, Renew):
            event = Answered(event.request, now, event.answer)
        return super().on(event, now)


class AcknowledgedFromReceipt(OpenCore):
    """An acknowledgement counts from when it came."""

    def on(self, event: Event, now: float) -> list[Order]:
        if isinstance(event, PeerSaid) and isinstance(event.message, Acknowledgement):
            event = PeerSaid(event.peer, Acknowledgement(now))
        return super().on(event, now)


# ---- verdicts


class HalfIsEnough(Ballots):
    def is_majority(self, assents: int, others: int) -> bool:
        return 2 * assents >= others


class NotStrict(OpenCore):
    """A verdict needs half, not more."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.ballots = HalfIsEnough()


class OfTheNewest(Ballots):
    def is_carried(self, verdict: Verdict, table: Table) -> bool:
        rows = tuple(msgspec.structs.replace(row, seen=table.version) for row in table.rows)
        return super().is_carried(verdict, msgspec.structs.replace(table, rows=rows))


class NewestViewOnly(OpenCore):
    """The majority is looked for in the newest view only."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.ballots = OfTheNewest()


class KeepsAssents(Ballots):
    over = ""

    def open(self, verdict: Verdict) -> None:
        known = self._verdicts.get(verdict.target)
        if known is not None and getattr(known, self.over) != getattr(verdict, self.over):
            same = msgspec.structs.replace(known, **{self.over: getattr(verdict, self.over)}) == verdict
            if same:
                self._verdicts[verdict.target] = verdict
        super().open(verdict)


class KeepsOverRenewals(KeepsAssents):
    over = "seq"


class KeepsOverViews(KeepsAssents):
    over = "version"


class AssentSurvivesRenewal(OpenCore):
    """An assent counts on once its target has renewed."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.ballots = KeepsOverRenewals()


class AssentSurvivesVersion(OpenCore):
    """An assent counts on once the view has changed."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.ballots = KeepsOverViews()


class Impatient(OpenCore):
    """Whoever judges does not look at how long the target was silent."""

    def stand_observing(self, age: int, run: str, seq: int) -> None:
        super().stand_observing(self.wait, run, seq)

    @property
    def wait(self) -> int:
        return int(self.settings.wait_s)


class IgnoresTheRun(Observations):
    def take(self, table: Table, me: SiloAddress | None, now: float) -> None:
        known = self._observed.get(VICTIM)
        super().take(table, me, now)
        if known is not None:
            self._observed[VICTIM] = Observation(table.run, self._observed[VICTIM].seq, known.since)


class NoRunId(OpenCore):
    """After a failover judges go on counting, and assents go on counting."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.observations = IgnoresTheRun(settings)


# ---- a table that was lost


class CarriesUndeclared(Ballots):
    def is_carried(self, verdict: Verdict, table: Table) -> bool:
        rows = tuple(msgspec.structs.replace(row, seen=max(row.seen, 1)) for row in table.rows)
        return super().is_carried(verdict, msgspec.structs.replace(table, rows=rows))


class JudgesByLostViews(OpenCore):
    """A majority is looked for though the target has declared no view of this table."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.ballots = CarriesUndeclared()


class RejoinsFenced(OpenCore):
    """A silo without the right joins the next table, and its right is not withheld."""

    def _lose(self, table_id: str, now: float) -> bool:
        held, self.deadline = self.deadline, math.inf
        try:
            return super()._lose(table_id, now)
        finally:
            self.deadline = held


class ShedsOverTables(Promises):
    def learn(self, table: Table, sent_at: float) -> None:
        self.bound = {silo: binding for silo, binding in self.bound.items() if binding.run == table.run}
        super().learn(table, sent_at)


class ForgetsWithTheTable(OpenCore):
    """An assent binds no longer than the table lasts."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.promises = ShedsOverTables(settings)


# ---- times


class SlowAtG(Ticks):
    """A verdict without assents is given after G."""

    __slots__ = ()

    @property
    def wait_alone_s(self) -> float:
        return self.grace_s


# ---- the table


class SeenIsGiven(OpenTable):
    """What a renewal was answered counts as declared."""

    def carry_out(self, request: TableRequest) -> TableAnswer:
        if isinstance(request, Renew):
            request = msgspec.structs.replace(request, seen=self._version)
        return super().carry_out(request)


class RenewsTheDead(OpenTable):
    """A renewal is taken after the verdict."""

    def carry_out(self, request: TableRequest) -> TableAnswer:
        row = self._rows.get(request.silo) if isinstance(request, Renew) else None
        if row is not None:
            self._rows[row.silo] = msgspec.structs.replace(row, status=SiloStatus.ACTIVE, dead=None)
        return super().carry_out(request)


class VerdictNotBoundToSeq(OpenTable):
    """A verdict is taken though its target has renewed meanwhile."""

    def carry_out(self, request: TableRequest) -> TableAnswer:
        row = self._rows.get(request.target) if isinstance(request, Verdict) else None
        if row is not None and isinstance(request, Verdict):
            request = msgspec.structs.replace(request, seq=row.seq)
        return super().carry_out(request)


@dataclass(frozen=True)
class Planted:
    """A bug, and the smallest world in which it does harm."""

    parts: Parts
    configuration: Configuration


def _in(parts: Parts, silos: int, joiners: int = 0, **options: object) -> Planted:
    return Planted(parts, Configuration("planted", silos, joiners, **options))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - passed on


PLANTED: Final = {
    "an acknowledgement after the assent": _in(Parts(AcknowledgesAfterAssent), 2),
    "a verdict needs half, not more": _in(Parts(NotStrict), 3),
    "amber rounds down": _in(Parts(AmberRoundsDown), 4),
    "amber has no end": _in(Parts(AmberWithoutEnd), 3),
    "slow after G": _in(Parts(ticks=SlowAtG), 2, grace=3),
    "a renewal counts from receipt": _in(Parts(RenewsFromReceipt), 2, delays="arq"),
    "an acknowledgement counts from receipt": _in(Parts(AcknowledgedFromReceipt), 2, delays="arq"),
    "an assent before the promise is over": _in(Parts(AssentsEarly), 2),
    "a majority of the newest view only (1 silo)": _in(Parts(NewestViewOnly), 1, 2, changes=3),
    "a majority of the newest view only (3 silos)": _in(Parts(NewestViewOnly), 3),
    "an assent survives a renewal": _in(Parts(AssentSurvivesRenewal), 2),
    "an assent survives a change of the view": _in(Parts(AssentSurvivesVersion), 3, 1),
    "seen is what was given": _in(Parts(table=SeenIsGiven), 1, 2, changes=3),
    "a renewal is taken after the verdict": _in(Parts(table=RenewsTheDead), 2),
    "no run id": _in(Parts(NoRunId), 2, failovers=1),
    "no margin": _in(Parts(ticks=Ticks), 2, drifts=True),
    "judges do not look at the lease": _in(Parts(Impatient), 2),
    "a lone silo is amber": _in(Parts(AmberAlone), 1, 1),
    "a verdict is not bound to seq": _in(Parts(table=VerdictNotBoundToSeq), 2),
}
"""The nineteen that an earlier exploration of the rule was shown to find."""

PLANTED_LOSS: Final = {
    "a majority of views that were lost": _in(Parts(JudgesByLostViews), 2, 1, wipes=1),
    "a fenced silo goes on in the next table": _in(Parts(RejoinsFenced), 2, wipes=1),
    "an assent binds no longer than the table": _in(Parts(ForgetsWithTheTable), 3, wipes=1),
}
"""Likewise, of what is done about a table that was lost."""
