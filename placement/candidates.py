"""Who may host a new activation: what the table, the health of the silos and the filters leave, and why not others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import GrainUnplaceable
from silo.directory.membership import EMPTY_VIEW, SiloRow, SiloStatus, View
from silo.placement.failures import PolicyFailures
from silo.placement.policy import Candidate, PlacementFilter

KINDS_REMEMBERED_MAX = 1024
"""For how many grain kinds the hosts are remembered within one view: callers may ask for kinds that nobody has."""
SILOS_EXPLAINED_MAX = 20
"""How many silos a message names before it only counts."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A silo that is no candidate, and why."""

    silo: SiloAddress
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.silo}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """What the membership table alone says about a kind: who hosts it, and why the other living silos do not."""

    rows: Mapping[SiloAddress, SiloRow]
    candidates: tuple[Candidate, ...]
    excluded: tuple[Exclusion, ...]


class HostsOfView:
    """The hosts of each kind in the newest view, ordered by address: computed once per view and kind.

    Args:
        local: the silo that decides.
    """

    def __init__(self, local: SiloAddress) -> None:
        self._local = local
        self._view = EMPTY_VIEW
        self._hosts: dict[str, Hosts] = {}
        self.here: Candidate | None = None
        """The silo that decides, where the view has it."""

    def of(self, kind: str, view: View) -> Hosts:
        if view is not self._view or len(self._hosts) >= KINDS_REMEMBERED_MAX:
            self._view = view
            self._hosts.clear()
            row = view.row(self._local)
            self.here = None if row is None else Candidate.of(row)
        found = self._hosts.get(kind)
        if found is None:
            reasons = [(row, _barred(row, kind)) for row in sorted(view.living(), key=lambda row: row.silo)]
            hosts = [row for row, reason in reasons if reason is None]
            found = self._hosts[kind] = Hosts(
                {row.silo: row for row in hosts},
                tuple(Candidate.of(row) for row in hosts),
                tuple(Exclusion(row.silo, row.info.name, reason) for row, reason in reasons if reason is not None),
            )
        return found


class Narrowing:
    """The candidates of one decision as they become fewer, with the reasons."""

    def __init__(self, grain: GrainId, view: View, hosts: Hosts, here: Candidate | None) -> None:
        self._grain = grain
        self._view_version = view.version
        self._here = here
        self._rows = hosts.rows
        self.candidates = hosts.candidates
        self.excluded = hosts.excluded
        self.notes: list[str] = []

    def __contains__(self, silo: object) -> bool:
        return any(candidate.silo == silo for candidate in self.candidates)

    def demand(self, is_eligible: Callable[[SiloRow], str | None]) -> None:
        """Take out the silos that the runtime gives a reason against."""
        self._take_out(self._reasons(is_eligible))

    def require(self, required: PlacementFilter, failures: PolicyFailures) -> None:
        """Take out what the filter excludes. One that raises may not be passed over: nobody is a candidate then."""
        try:
            reasons = dict(required.exclude(self._grain, self.candidates, self._here))
        except Exception as error:
            failures.count(repr(required), "exclude", error)
            message = f"no silo may host {self._grain}: the filter {required!r} raised {error!r}"
            raise GrainUnplaceable(message) from error
        self._take_out(reasons)

    def avoid(self, name: str, is_preferred: Callable[[SiloRow], str | None]) -> None:
        """Pass over the silos that the runtime gives a reason against, if others remain."""
        self._pass_over(name, self._reasons(is_preferred))

    def prefer(self, advisory: PlacementFilter, failures: PolicyFailures) -> None:
        """Pass over what the filter excludes, if others remain. One that raises is left out, and noted."""
        try:
            reasons = dict(advisory.exclude(self._grain, self.candidates, self._here))
        except Exception as error:  # a preference that cannot be had is no reason to fail calls
            failures.count(repr(advisory), "exclude", error)
            self.notes.append(f"{advisory!r} raised {error!r} and was left out")
            return
        self._pass_over(repr(advisory), reasons)

    def refusal(self) -> GrainUnplaceable:
        """The error that says why nobody is left."""
        head = f"no silo may host {self._grain} (kind {self._grain.kind!r}, view {self._view_version})"
        if not self.excluded:
            return GrainUnplaceable(f"{head}: the view shows no living silo")
        shown = "; ".join(str(exclusion) for exclusion in self.excluded[:SILOS_EXPLAINED_MAX])
        rest = len(self.excluded) - SILOS_EXPLAINED_MAX
        return GrainUnplaceable(f"{head}: {shown}" + (f"; and {rest} more" if rest > 0 else ""))

    def why_not(self, silo: SiloAddress) -> str:
        """Why this silo is no candidate."""
        return next((one.reason for one in self.excluded if one.silo == silo), "it is no living silo of this view")

    def _reasons(self, ask: Callable[[SiloRow], str | None]) -> Mapping[SiloAddress, str]:
        rows = self._rows
        reasons: dict[SiloAddress, str] = {}
        for one in self.candidates:
            reason = ask(rows[one.silo])
            if reason is not None:
                reasons[one.silo] = reason
        return reasons

    def _pass_over(self, name: str, reasons: Mapping[SiloAddress, str]) -> None:
        if not reasons:
            return
        if self.candidates and all(one.silo in reasons for one in self.candidates):
            reason = reasons[self.candidates[0].silo]
            self.notes.append(f"{name} was left out, since it speaks against every candidate: {reason}")
            return
        self._take_out(reasons)

    def _take_out(self, reasons: Mapping[SiloAddress, str]) -> None:
        if not reasons:
            return
        out = tuple(Exclusion(one.silo, one.name, reasons[one.silo]) for one in self.candidates if one.silo in reasons)
        self.excluded += out
        self.candidates = tuple(one for one in self.candidates if one.silo not in reasons)


def _barred(row: SiloRow, kind: str) -> str | None:
    """Why the table alone keeps the silo from hosting the kind; None where it does not."""
    if row.status is not SiloStatus.ACTIVE:
        return f"it is {row.status.name.lower()}, not active"
    if row.cordoned:
        return "it is cordoned"
    if row.info.kinds and kind not in row.info.kinds:  # a silo that lists no kinds hosts all of them
        return f"it does not host kind {kind!r}"
    return None
