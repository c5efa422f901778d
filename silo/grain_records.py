"""What management tells of one grain, as values: the report of each silo, and the record that they make together."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress

TRANSITIONS_SHOWN_MAX: Final = 20
"""How many transitions a record has, of all silos together; the newest are kept."""


class Fate(enum.StrEnum):
    """What can become of a grain, as one silo sees it."""

    SERVED = "served"
    """By the silo of the entry that was found; when that began is not known here."""
    LOST = "lost"
    """The silo that served it is dead."""
    NOT_FOUND = "not found"
    """The directory or the membership table could not say where it is."""
    NOT_PLACED = "not placed"
    """No silo may host it now."""
    FOUND = "found"
    """Or placed, after all: calls go there."""
    GIVEN_UP = "given up"
    """Nobody waits for it any more."""
    NOT_ACTIVATED = "not activated"
    """It failed to start."""
    ACTIVE = "active"
    """Here: its turns start."""
    MOVING = "moving"
    """To another silo; it holds new calls back for that."""
    MOVE_ABORTED = "move aborted"
    DEACTIVATED = "deactivated"
    ORDERED = "ordered to deactivate"
    """By an operator; its trouble until then counts no more."""


TROUBLES: Final = frozenset({Fate.LOST, Fate.NOT_FOUND, Fate.NOT_PLACED, Fate.NOT_ACTIVATED})
"""What is shown as the error of a grain until something better follows."""
SETTLING: Final = frozenset({Fate.GIVEN_UP})
"""What changes nothing about an error."""


class Transition(msgspec.Struct, frozen=True):
    """What became of a grain, as one silo saw it."""

    state: str
    """A `Fate`, or one that only newer releases know."""
    why: str = ""
    times: int = 1
    """How often in a row it came to that."""
    ago_s: float | None = None
    """How long ago it last did; None for what was before the silo took note."""
    silo: str = ""
    """The name of the silo that saw it."""


class GrainState(enum.StrEnum):
    """Where a grain stands in the cluster."""

    ACTIVE = "active"
    STARTING = "starting"
    MOVING = "moving"
    DEACTIVATING = "deactivating"
    TRYING = "trying"
    """It is not active, and a silo is about to find or place it."""
    WAITING = "waiting"
    """It could not be found or placed; the next try is due later."""
    LOST = "lost"
    """The silo that the directory names is dead; the next call has the grain activated elsewhere."""
    UNKNOWN = "unknown"
    """The silo that the directory names did not answer, or the directory could not say."""
    NOT_ACTIVE = "not active"


class ActivationReport(msgspec.Struct, frozen=True):
    """An activation, by the silo that it is on."""

    activation: str
    epoch: int
    state: GrainState
    """Starting, active, moving or deactivating."""
    queued_calls: int
    running_calls: int
    idle_s: float | None
    """Since its last call ended; None while one runs or waits."""
    reachable_s: float | None
    """Since when calls reach it; None while they wait."""
    moving_to: str = ""
    """The name of the silo that it is moving to."""


class SearchReport(msgspec.Struct, frozen=True):
    """Calls that wait on one silo, since their grain could not be found or placed."""

    waiting_calls: int
    failed_tries: int
    """How many tries in a row have failed."""
    retry_in_s: float | None
    """Until the next one; None while one is under way."""


class GrainReport(msgspec.Struct, frozen=True):
    """What one silo knows of a grain."""

    silo: SiloAddress
    entry: Entry | None = None
    """The directory's row, where the silo was to ask for it and there is one."""
    entry_unknown: str = ""
    """Why the directory could not say."""
    activation: ActivationReport | None = None
    search: SearchReport | None = None
    transitions: tuple[Transition, ...] = ()


class GrainRecord(msgspec.Struct, frozen=True):
    """What a cluster knows of one grain."""

    grain: GrainId
    state: GrainState
    silo: str | None
    """The name of the silo that serves it, by its own word, else by the directory."""
    entry: Entry | None
    epoch: int | None
    queued_calls: int
    """At its silo."""
    running_calls: int
    idle_s: float | None
    reachable_s: float | None
    """Since when calls reach it; None where they do not."""
    moving_to: str
    waiting_calls: int
    """On all silos, until it is found or placed."""
    failed_tries: int
    """The most that any silo has made in a row."""
    retry_in_s: float | None
    """Until the next one of any silo."""
    error: str
    """The last one, where nothing better has followed."""
    transitions: tuple[Transition, ...]
    """The last that any silo remembers, the oldest first; silos keep them of grains that were in trouble, moved, or
    ordered to deactivate."""
    unanswered: tuple[str, ...]
    """The silos that did not answer, by name: what they know is missing."""


class DeactivationStatus(enum.StrEnum):
    """How far an order to deactivate a grain has come."""

    DEACTIVATED = "deactivated"
    NOT_ACTIVE = "not_active"
    """There was nothing to end."""
    MOVED = "moved"
    """On one silo: the grain has moved on, to another one that has to be told."""
    UNDER_WAY = "under_way"
    """It could not be done in the time given, and will be: the order stands; `why` says what it waits for."""


class DeactivationReport(msgspec.Struct, frozen=True):
    """What one silo did about an order to deactivate a grain."""

    silo: SiloAddress
    status: DeactivationStatus
    why: str = ""


class DeactivationOutcome(msgspec.Struct, frozen=True):
    """What became of an order to deactivate a grain."""

    grain: GrainId
    status: DeactivationStatus
    why: str = ""
    unanswered: tuple[str, ...] = ()
    """The silos that did not answer, by name: whether it is active there is not known."""

    def __str__(self) -> str:
        what = {
            DeactivationStatus.DEACTIVATED: "was deactivated",
            DeactivationStatus.NOT_ACTIVE: f"was not active: {self.why}" if self.why else "was not active",
        }.get(self.status, f"is yet to be deactivated: {self.why}")
        rest = f" (no answer from {', '.join(self.unanswered)})" if self.unanswered else ""
        return f"{self.grain} {what}{rest}"


def deactivation_outcome(
    grain: GrainId, reports: Sequence[DeactivationReport], unanswered: Sequence[str]
) -> DeactivationOutcome:
    """What the reports of the silos make together: what is yet to be done counts before what is done."""
    by_status = {report.status: report.why for report in reports}
    for status in (DeactivationStatus.UNDER_WAY, DeactivationStatus.MOVED):
        if status in by_status:
            why = by_status[status] if status is DeactivationStatus.UNDER_WAY else f"it moved on, {by_status[status]}"
            return DeactivationOutcome(grain, DeactivationStatus.UNDER_WAY, why, tuple(unanswered))
    done = DeactivationStatus.DEACTIVATED in by_status
    status = DeactivationStatus.DEACTIVATED if done else DeactivationStatus.NOT_ACTIVE
    return DeactivationOutcome(grain, status, "", tuple(unanswered))


def recorded(
    grain: GrainId,
    reports: Sequence[GrainReport],
    names: dict[SiloAddress, str],
    unanswered: Collection[SiloAddress],
) -> GrainRecord:
    """The record of a grain from the reports of the silos that answered.

    Args:
        names: of all living silos.
        unanswered: those of them that did not answer.
    """
    entry = next((report.entry for report in reports if report.entry is not None), None)
    entry_unknown = next((report.entry_unknown for report in reports if report.entry_unknown), "")
    host = _host(reports, entry)
    here = host.activation if host is not None else None
    searches = [report.search for report in reports if report.search is not None]
    transitions = _joined(reports, names)
    reachable_s = here.reachable_s if here is not None else None
    retries = [search.retry_in_s for search in searches if search.retry_in_s is not None]
    silo = host.silo if host is not None else entry.silo if entry is not None else None
    return GrainRecord(
        grain,
        _state(here, searches, entry, entry_unknown, names, unanswered),
        None if silo is None else names.get(silo, str(silo)),
        entry,
        here.epoch if here is not None and here.epoch else entry.epoch if entry is not None else None,
        here.queued_calls if here is not None else 0,
        here.running_calls if here is not None else 0,
        here.idle_s if here is not None else None,
        reachable_s,
        here.moving_to if here is not None else "",
        sum(search.waiting_calls for search in searches),
        max((search.failed_tries for search in searches), default=0),
        min(retries, default=None),
        "" if reachable_s is not None else entry_unknown or _last_error(transitions),
        transitions,
        tuple(sorted(names.get(each, str(each)) for each in unanswered)),
    )


def _host(reports: Iterable[GrainReport], entry: Entry | None) -> GrainReport | None:
    """The report of the silo that serves the grain: in the middle of a move there may be activations on two."""
    hosts = [report for report in reports if report.activation is not None]
    named = (each for each in hosts if entry is not None and each.silo == entry.silo)
    return next(named, hosts[0] if hosts else None)


def _state(
    here: ActivationReport | None,
    searches: Sequence[SearchReport],
    entry: Entry | None,
    entry_unknown: str,
    living: Collection[SiloAddress],
    unanswered: Collection[SiloAddress],
) -> GrainState:
    if here is not None:
        return here.state
    if searches:
        return GrainState.TRYING if any(each.retry_in_s is None for each in searches) else GrainState.WAITING
    if entry_unknown or (entry is not None and entry.silo in unanswered):
        return GrainState.UNKNOWN
    if entry is not None and entry.silo not in living:
        return GrainState.LOST
    return GrainState.NOT_ACTIVE


def _joined(reports: Iterable[GrainReport], names: dict[SiloAddress, str]) -> tuple[Transition, ...]:
    """The transitions of all silos in their order: how long ago each was, by its own silo's clock."""
    seen = [
        msgspec.structs.replace(each, silo=names.get(report.silo, str(report.silo)))
        for report in reports
        for each in report.transitions
    ]
    seen.sort(key=lambda each: -each.ago_s if each.ago_s is not None else float("-inf"))
    return tuple(seen[-TRANSITIONS_SHOWN_MAX:])


def _last_error(transitions: Sequence[Transition]) -> str:
    for each in reversed(transitions):
        if each.state in TROUBLES:
            return each.why
        if each.state not in SETTLING:
            return ""
    return ""


def summary(record: GrainRecord) -> dict[str, object]:
    """The record for the eye: what there is to say, and nothing else."""
    retry = "now" if record.retry_in_s is None else f"in {record.retry_in_s:.2f} s"
    tries = f"{record.failed_tries} failed, the next one {retry}"
    figures: dict[str, object] = {
        "grain": str(record.grain),
        "state": f"{record.state} to {record.moving_to}" if record.moving_to else str(record.state),
        "silo": record.silo,
        "epoch": record.epoch,
        "activation": record.entry.activation if record.entry is not None else None,
        "reachable for": _seconds(record.reachable_s),
        "idle for": _seconds(record.idle_s),
        "calls": f"{record.running_calls} running, {record.queued_calls} queued, {record.waiting_calls} waiting",
        "tries": tries if record.state in (GrainState.WAITING, GrainState.TRYING) else None,
        "error": record.error or None,
        "no answer from": ", ".join(record.unanswered) or None,
    }
    transitions = [
        {
            "ago": _seconds(each.ago_s) or "before",
            "state": each.state if each.times == 1 else f"{each.state} ({each.times} times)",
            "seen by": each.silo,
            "why": each.why,
        }
        for each in record.transitions
    ]
    shown = {name: value for name, value in figures.items() if value is not None}
    return {**shown, "transitions": transitions} if transitions else shown


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} s"
